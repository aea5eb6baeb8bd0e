package image

import (
	"fmt"
	"os"
	"strings"
)

// trustVariables name files with certificates. Where they are set, the network is often one that inspects TLS, and a
// step that fetches something fails without them.
var trustVariables = []string{"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"}

// trusted is a file with certificates that this machine trusts and the variable that names it.
type trusted struct{ variable, file string }

// hostTrust finds the certificates of this machine. The steps of a build see them under the same variables while they
// run; nothing of them stays in the image.
func hostTrust() []trusted {
	var found []trusted
	for _, variable := range trustVariables {
		file := os.Getenv(variable)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			found = append(found, trusted{variable, file})
		}
	}
	return found
}

// secret is the builder's name of the file, and its name below /run, where builders leave an empty file (isMountpoint).
func (t trusted) secret() string { return secretPrefix + strings.ToLower(t.variable) }

const secretPrefix = "helmr_trust_"

// argument declares the variable for the steps of a stage. An image that sets the variable itself wins.
func (t trusted) argument() string {
	return fmt.Sprintf("ARG %s=/run/%s\n", t.variable, t.secret())
}

// mount shows the file to one step, whatever user it runs as.
func (t trusted) mount() string {
	return fmt.Sprintf("--mount=type=secret,id=%[1]s,target=/run/%[1]s,mode=0444 ", t.secret())
}

// secretOptions hands the files to a builder: buildah, Docker and buildctl take the same words.
func secretOptions(trust []trusted) []string {
	var options []string
	for _, t := range trust {
		options = append(options, "--secret", "id="+t.secret()+",src="+t.file)
	}
	return options
}
