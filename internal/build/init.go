package build

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	sdk "helmr.dev/helmr/sdk/typescript"
)

// starter is the project that Init writes.
//
//go:embed all:starter
var starter embed.FS

// sdkTypesDir is where editors and tsc find the SDK that this helmr builds with; tsconfig.json points to it.
const sdkTypesDir = ".helmr/sdk"

// Init writes a starter project into dir, which is made when it is missing, and gives the files that it wrote, relative
// to dir. A file that exists already is refused, before anything is written, unless force is set.
func Init(dir string, force bool) ([]string, error) {
	if dir == "" {
		dir = "."
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("write starter project: %w", err)
	}
	files, err := starterFiles(packageName(filepath.Base(absolute)))
	if err != nil {
		return nil, err
	}
	names := sortedKeys(files)
	if !force {
		for _, name := range names {
			if _, err := os.Lstat(filepath.Join(absolute, name)); err == nil {
				return nil, problem(path.Join(filepath.ToSlash(dir), name), "Name another folder with --dir, or write over it with --force", "exists already")
			} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
				return nil, fmt.Errorf("write starter project: %w", err)
			}
		}
	}
	for _, name := range names {
		target := filepath.Join(absolute, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return nil, fmt.Errorf("write starter project: %w", err)
		}
		if err := os.WriteFile(target, files[name], 0o644); err != nil {
			return nil, fmt.Errorf("write starter project: %w", err)
		}
	}
	if err := writeTypes(absolute); err != nil {
		return nil, err
	}
	return names, nil
}

// starterFiles gives the starter's files for a project of that name.
func starterFiles(name string) (map[string][]byte, error) {
	root, err := fs.Sub(starter, "starter")
	if err != nil {
		return nil, fmt.Errorf("read starter project: %w", err)
	}
	files := map[string][]byte{}
	err = fs.WalkDir(root, ".", func(file string, item fs.DirEntry, err error) error {
		if err != nil || item.IsDir() {
			return err
		}
		files[file], err = fs.ReadFile(root, file)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read starter project: %w", err)
	}
	files[manifestName] = []byte(strings.Replace(string(files[manifestName]), `"starter"`, `"`+name+`"`, 1))
	return files, nil
}

// writeTypes puts the source of the SDK where the project's tsconfig.json expects its types.
func writeTypes(dir string) error {
	target := filepath.Join(dir, filepath.FromSlash(sdkTypesDir))
	if err := os.RemoveAll(target); err != nil {
		return fmt.Errorf("write the types of %s: %w", sdkName, err)
	}
	if err := os.CopyFS(target, sdk.Files); err != nil {
		return fmt.Errorf("write the types of %s: %w", sdkName, err)
	}
	return nil
}

var notInPackageNames = regexp.MustCompile(`[^a-z0-9._-]+`)

// packageName makes a valid package name of a folder's name.
func packageName(folder string) string {
	name := strings.Trim(notInPackageNames.ReplaceAllString(strings.ToLower(folder), "-"), "-._")
	if name == "" {
		return "agents"
	}
	return name
}
