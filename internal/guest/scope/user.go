package scope

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is who a program runs as.
type account struct {
	credential *syscall.Credential
	home       string
}

// Owner gives the ids under which a program of the user runs, as Spec.User names it.
func Owner(user string) (uid, gid uint32, err error) {
	a, err := lookUp(user)
	switch {
	case err != nil:
		return 0, 0, err
	case a.credential == nil:
		return uint32(os.Getuid()), uint32(os.Getgid()), nil
	}
	return a.credential.Uid, a.credential.Gid, nil
}

// lookUp reads "", "user", "uid", "user:group" or "uid:gid" with the files of this root filesystem. A uid without an
// entry has group 0 and home "/", as in other container runtimes.
func lookUp(spec string) (account, error) {
	if spec == "" {
		a := account{home: "/"}
		if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil && u.HomeDir != "" {
			a.home = u.HomeDir
		}
		return a, nil
	}
	name, group, grouped := strings.Cut(spec, ":")
	a := account{credential: &syscall.Credential{}, home: "/"}
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	switch uid, numeric := parseID(name); {
	case err == nil:
		// The files of an image may hold anything; an entry that is no number is an error, not user 0.
		owner, ok1 := parseID(u.Uid)
		first, ok2 := parseID(u.Gid)
		if !ok1 || !ok2 {
			return a, fmt.Errorf("its entry in /etc/passwd has no numeric ids: %w", syscall.EINVAL)
		}
		a.credential.Uid, a.credential.Gid = owner, first
		if u.HomeDir != "" {
			a.home = u.HomeDir
		}
	case numeric:
		a.credential.Uid = uid
	default:
		return a, fmt.Errorf("not in /etc/passwd: %w", syscall.EINVAL)
	}
	if grouped {
		return a, a.setGroup(group)
	}
	if u != nil && err == nil {
		ids, _ := u.GroupIds()
		for _, id := range ids {
			if gid, ok := parseID(id); ok {
				a.credential.Groups = append(a.credential.Groups, gid)
			}
		}
	}
	return a, nil
}

func (a *account) setGroup(name string) error {
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	gid, ok := parseID(name)
	if !ok {
		return fmt.Errorf("group %q is not in /etc/group: %w", name, syscall.EINVAL)
	}
	a.credential.Gid = gid
	return nil
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil
}
