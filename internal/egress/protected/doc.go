// Package protected is the proxy that puts protected Secrets into requests: it answers a Computer's TLS connections to
// protected origins with certificates of the Computer's own authority, reads the requests, puts values in the place of
// placeholders in their headers, and sends them on over connections of its own. Bodies, paths and queries pass as they are.
//
// It knows no namespace, no policy and no server: how names are reached and what placeholders stand for is given to it. It
// trusts nothing that comes from a Computer. What it does not understand, or does not support, is refused and never
// forwarded; a value is asked for anew for each request, is kept no longer than the request takes, and is in no error.
package protected
