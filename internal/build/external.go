package build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helmr.dev/helmr/internal/build/bundle"
)

// semverRange accepts the ranges of package managers that name versions of a public registry: no tags, URLs, paths,
// aliases or workspaces.
var semverRange = regexp.MustCompile(`^[\s0-9xX*v=<>~^|.+-][\s0-9A-Za-z*=<>~^|.+-]*$`)

// externalPackage is a package placed in the program.
type externalPackage struct {
	name string
	from string // real folder in the installed tree
	to   string // slash-separated folder in the program
}

// externalFiles gives the files of the packages that are installed beside the bundle, with everything they depend on.
func externalFiles(tree string, names []string) ([]bundle.ProgramFile, error) {
	if len(names) == 0 {
		return nil, nil
	}
	manifest, err := readManifest(tree)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		asked, ok := manifest.Dependencies[name]
		if !ok {
			asked, ok = manifest.OptionalDependencies[name]
		}
		field := fmt.Sprintf("build.external[%d]", i)
		if !ok {
			return nil, problem(configName, "Add it to dependencies in package.json", "%s: %q is not declared in package.json", field, name)
		}
		if !semverRange.MatchString(asked) {
			return nil, problem(manifestName, "Give a semver range such as ^1.2.0", "dependencies[%q] is %q; a package in build.external comes from the public registry", name, asked)
		}
	}
	packages, err := placeExternals(tree, names)
	if err != nil {
		return nil, err
	}
	var files []bundle.ProgramFile
	for _, p := range packages {
		found, err := packageFiles(tree, p)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// placeExternals lays out packages and their dependencies so that each finds what it found in the installed tree: at
// the top where the name is free there, else below the package that needs it. It goes level by level, so that the
// places of a package's own dependencies are settled before those of the packages below it.
func placeExternals(tree string, names []string) ([]externalPackage, error) {
	placed := map[string]string{} // folder in the program -> real folder
	var order, level []externalPackage
	place := func(p externalPackage) {
		placed[p.to] = p.from
		order, level = append(order, p), append(level, p)
	}
	for _, name := range names {
		from, err := findPackage(tree, tree, name)
		if err != nil {
			return nil, err
		}
		if from == "" {
			return nil, problem(configName, "Check that the installation installs it", "build.external: %q is not in the installed tree", name)
		}
		place(externalPackage{name: name, from: from, to: "node_modules/" + name})
	}
	for len(level) > 0 {
		parents := level
		level = nil
		for _, parent := range parents {
			manifest, err := readManifest(parent.from)
			if err != nil {
				return nil, err
			}
			for _, name := range manifest.needs() {
				from, err := findPackage(tree, parent.from, name)
				if err != nil {
					return nil, err
				}
				if from == "" {
					if _, required := manifest.Dependencies[name]; required {
						return nil, problem("install", "Check that the installation installs it", "%s needs %q, which is not in the installed tree", parent.name, name)
					}
					continue // optional, or a peer that the project does not use
				}
				if visible, ok := lookUp(placed, parent.to, name); ok && visible == from {
					continue
				}
				to := "node_modules/" + name
				if _, taken := placed[to]; taken {
					to = parent.to + "/node_modules/" + name
				}
				place(externalPackage{name: name, from: from, to: to})
			}
			if len(order) > bundle.MaxProgramFiles {
				return nil, problem("install", "Take less into build.external", "more than %d packages", bundle.MaxProgramFiles)
			}
		}
	}
	return order, nil
}

// needs lists what a package may load, sorted.
func (m projectManifest) needs() []string {
	var names []string
	for _, dependencies := range []map[string]string{m.Dependencies, m.OptionalDependencies, m.PeerDependencies} {
		for name := range dependencies {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// lookUp finds what a package at place sees under name, as Node.js would.
func lookUp(placed map[string]string, place, name string) (string, bool) {
	for {
		if from, ok := placed[place+"/node_modules/"+name]; ok {
			return from, true
		}
		cut := strings.LastIndex(place, "/node_modules/")
		if cut < 0 {
			from, ok := placed["node_modules/"+name]
			return from, ok
		}
		place = place[:cut]
	}
}

// findPackage resolves name from the folder dir as Node.js does, but never outside tree. "" means that it is not there.
func findPackage(tree, dir, name string) (string, error) {
	for {
		candidate := filepath.Join(dir, "node_modules", filepath.FromSlash(name))
		if filepath.Base(dir) == "node_modules" {
			candidate = filepath.Join(dir, filepath.FromSlash(name))
		}
		if real, err := filepath.EvalSymlinks(candidate); err == nil {
			if real != tree && !strings.HasPrefix(real, tree+"/") {
				return "", problem(name, "Install it from the registry", "the installed package is a link out of the project, to %s", real)
			}
			return real, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find package %s: %w", name, err)
		}
		if dir == tree || len(dir) <= len(tree) {
			return "", nil
		}
		dir = filepath.Dir(dir)
	}
}

// packageFiles lists the files of one package, without packages installed inside it. Links inside it become files.
func packageFiles(tree string, p externalPackage) ([]bundle.ProgramFile, error) {
	if _, err := os.Stat(filepath.Join(p.from, manifestName)); err != nil {
		return nil, problem(p.name, "Install it again", "the installed package has no package.json")
	}
	var files []bundle.ProgramFile
	err := filepath.WalkDir(p.from, func(name string, item fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if item.IsDir() {
			if item.Name() == "node_modules" && name != p.from {
				return fs.SkipDir
			}
			return nil
		}
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		info, err := os.Stat(real)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(p.from, name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || !strings.HasPrefix(real, tree+"/") {
			return problem(path.Join(p.to, filepath.ToSlash(relative)), "Bundle the package instead of naming it in build.external", "is a link to a folder or out of the project")
		}
		files = append(files, bundle.ProgramFile{Path: path.Join(p.to, filepath.ToSlash(relative)), Source: real, Executable: info.Mode()&0o100 != 0})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read package %s: %w", p.name, err)
	}
	return files, nil
}

// assetFiles gives the files that the globs of build.assets name, under their own paths.
func assetFiles(entries []entry, source string, patterns []string) ([]bundle.ProgramFile, error) {
	var files []bundle.ProgramFile
	taken := map[string]bool{}
	for i, pattern := range patterns {
		field := fmt.Sprintf("build.assets[%d]", i)
		matched := false
		for _, e := range entries {
			if e.kind == fs.ModeDir || !matchesAny([]string{pattern}, e.path) {
				continue
			}
			matched = true
			switch {
			case e.kind == fs.ModeSymlink:
				return nil, problem(configName, "Name the file that it leads to", "%s: %q matches the link %s", field, pattern, e.path)
			case e.path == bundle.Entry || strings.HasPrefix(e.path, "node_modules/"):
				return nil, problem(configName, "Rename the file", "%s: %q matches %s, a name that the program needs itself", field, pattern, e.path)
			case taken[e.path]:
				continue
			}
			taken[e.path] = true
			files = append(files, bundle.ProgramFile{Path: e.path, Source: filepath.Join(source, filepath.FromSlash(e.path)), Executable: e.executable})
		}
		if !matched {
			return nil, problem(configName, "Correct the glob, or check that .helmrignore does not name the files", "%s: %q matches no file", field, pattern)
		}
	}
	return files, nil
}
