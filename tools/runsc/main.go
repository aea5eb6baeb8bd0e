// Command runsc is gVisor's runsc with one subcommand more: control, which serves many requests in one process.
package main

import (
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "control" {
		os.Exit(control(os.Args[2:]))
	}
	maincli.Main()
}
