package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// connect NETWORK ADDRESS TEXT prints what comes back, or how it failed.
func connect(args []string) error {
	conn, err := net.DialTimeout(args[0], args[1], 20*time.Second)
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = io.WriteString(conn, args[2])
	}
	if err != nil {
		fmt.Println("error:", err)
		return nil
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	fmt.Printf("%s", buf[:n])
	if err != nil {
		fmt.Println("error:", err)
	}
	return nil
}

// secure ADDRESS NAME makes a TLS connection and prints the first line that the server says.
func secure(args []string) error {
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}, Config: &tls.Config{ServerName: args[1], InsecureSkipVerify: true}}
	conn, err := d.DialContext(context.Background(), "tcp", args[0])
	if err != nil {
		fmt.Println("error:", err)
		return nil
	}
	defer conn.Close()
	buf := make([]byte, 4096)
	n, _ := conn.Read(buf)
	fmt.Printf("%s", buf[:n])
	return nil
}

// lookUp NAME prints the addresses of a name, found as /etc/resolv.conf says.
func lookUp(args []string) error {
	list, err := (&net.Resolver{PreferGo: true}).LookupHost(context.Background(), args[0])
	if err != nil {
		fmt.Println("error:", err)
		return nil
	}
	fmt.Println(strings.Join(list, " "))
	return nil
}

// raw prints whether sockets that see or make whole packets can be had.
func raw([]string) error {
	for _, s := range []struct {
		name                   string
		family, kind, protocol int
	}{
		{"ip", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, {"icmp", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0x300}, {"datagram packet", unix.AF_PACKET, unix.SOCK_DGRAM, 0x300},
		{"sctp", unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP}, {"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0}, {"xdp", unix.AF_XDP, unix.SOCK_RAW, 0},
	} {
		fd, err := unix.Socket(s.family, s.kind, s.protocol)
		if err == nil {
			_ = unix.Close(fd)
			fmt.Println(s.name)
		}
	}
	return nil
}

// hold keeps a connection that PID 1 has open for as long as the sandbox lives.
func hold(address string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hold:", err)
		return
	}
	held = conn
}

var held net.Conn
