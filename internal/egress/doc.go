// Package egress gives Computers an outbound network and holds their policies against them, outside the guest. It knows
// no sandbox, no lease and no server: it makes a network namespace for a Computer's id and a policy, and takes it away.
//
// What it makes, all named after the hash of the folder it works in, so that several Workers share a host:
//
//	host            uplink "hlmr<w>", table ip helmr-<w>     only once a Computer with an open policy was added
//	  |
//	helmr-<w>       the gateway: a namespace with its own nftables rules (default drop in every direction), a resolver
//	  |    |        and proxies. No other program manages its rules, and without an open policy no route leaves it
//	helmr-<w>-<c>   one namespace for each Computer, a veth "c<slot>" to the gateway and "eth0" inside
//
// Under an allowlist no packet of a Computer is ever forwarded: what it sends to TCP ports 443 and 80 ends in a proxy
// that reads the name (SNI, Host), resolves it itself and dials from the host. Under an open policy packets are forwarded
// and translated, except to mandatory denies. What is refused is refused at once: TCP with a reset, other packets with
// ICMP, names with NXDOMAIN, TLS with an alert and HTTP with 403.
//
// Namespaces and rules stay when this process ends; Open takes them up again and rewrites the rules in one transaction.
// Connections through a proxy end with the process, forwarded ones do not.
package egress
