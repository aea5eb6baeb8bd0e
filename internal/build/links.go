package build

import (
	"io/fs"
	"path"
	"strings"
)

// checkLinks makes sure that each symbolic link leads, inside the tree and within so many hops, to something captured.
func checkLinks(entries []entry, maxHops int) error {
	byPath := make(map[string]entry, len(entries))
	for _, e := range entries {
		byPath[e.path] = e
	}
	for _, e := range entries {
		if e.kind != fs.ModeSymlink {
			continue
		}
		if err := followLink(byPath, e, maxHops); err != nil {
			return err
		}
	}
	return nil
}

// followLink resolves one link as the kernel would, over entries alone: the disk may change meanwhile.
func followLink(entries map[string]entry, link entry, maxHops int) error {
	const remedy = "Point it to something that the build keeps, or name the link in .helmrignore"
	rest := strings.Split(link.path, "/")
	at, hops := "", 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if at == "" {
				return problem(link.path, remedy, "the link leads out of the project, to %q", link.target)
			}
			if at = path.Dir(at); at == "." {
				at = ""
			}
			continue
		}
		next := path.Join(at, name)
		e, ok := entries[next]
		switch {
		case !ok:
			return problem(link.path, remedy, "the link leads to %q, which does not exist or is left out (%s)", link.target, next)
		case e.kind == fs.ModeSymlink:
			if hops++; hops > maxHops {
				return problem(link.path, remedy, "the link goes over more than %d links, or in a circle", maxHops)
			}
			if path.IsAbs(e.target) {
				return problem(link.path, "Make it relative", "the link leads to the absolute path %q", e.target)
			}
			rest = append(strings.Split(e.target, "/"), rest...)
		case e.kind != fs.ModeDir && len(rest) > 0:
			return problem(link.path, remedy, "the link leads to %q, and %s is a file", link.target, next)
		default:
			at = next
		}
	}
	return nil
}
