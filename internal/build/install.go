package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"helmr.dev/helmr/internal/build/lend"
)

// projectManifest is what the build reads of package.json.
type projectManifest struct {
	PackageManager       string            `json:"packageManager"`
	Dependencies         map[string]string `json:"dependencies"`
	OptionalDependencies map[string]string `json:"optionalDependencies"`
	DevDependencies      map[string]string `json:"devDependencies"`
	PeerDependencies     map[string]string `json:"peerDependencies"`
}

func readManifest(dir string) (projectManifest, error) {
	var manifest projectManifest
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return manifest, fmt.Errorf("read %s: %w", manifestName, err)
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return manifest, problem(manifestName, "Correct the JSON", "cannot be read: %v", err)
	}
	return manifest, nil
}

// needsInstall tells whether programs of the project can import anything that must be installed. The SDK need not be:
// the build has it. Packages for development only are no part of a program.
func (m projectManifest) needsInstall() bool {
	for _, dependencies := range []map[string]string{m.Dependencies, m.OptionalDependencies} {
		for name := range dependencies {
			if name != sdkName {
				return true
			}
		}
	}
	return false
}

// packageManagers lists who can install, by lockfile. Each installs exactly what the lockfile says or fails.
var packageManagers = []struct {
	name      string
	lockfiles []string
	argv      []string
}{
	{"npm", []string{"package-lock.json", "npm-shrinkwrap.json"}, []string{"npm", "ci", "--no-audit", "--no-fund"}},
	{"pnpm", []string{"pnpm-lock.yaml"}, []string{"pnpm", "install", "--frozen-lockfile"}},
	{"yarn", []string{"yarn.lock"}, []string{"yarn", "install", "--frozen-lockfile"}},
	{"bun", []string{"bun.lock", "bun.lockb"}, []string{"bun", "install", "--frozen-lockfile"}},
}

var packageManagerField = regexp.MustCompile(`^(npm|pnpm|yarn|bun)@[0-9]+(\.[0-9]+){0,2}([-+.][0-9A-Za-z.+-]*)?$`)

// installCommand decides what installs the dependencies of the captured project. No command means nothing to install.
func installCommand(source string, c config) ([]string, error) {
	if c.Build.InstallCommand != "" {
		return []string{"/bin/bash", "-euo", "pipefail", "-c", c.Build.InstallCommand}, nil
	}
	manifest, err := readManifest(source)
	if err != nil {
		return nil, err
	}
	if !manifest.needsInstall() {
		return nil, nil
	}
	wanted := ""
	if manifest.PackageManager != "" {
		match := packageManagerField.FindStringSubmatch(manifest.PackageManager)
		if match == nil {
			return nil, problem(manifestName, "Write a name and version such as npm@11.0.0; npm, pnpm, yarn and bun are known", "packageManager is %q", manifest.PackageManager)
		}
		wanted = match[1]
	}
	const remedy = "Run your package manager's install once and keep its lockfile in the project, or set build.installCommand in helmr.config.ts"
	var found, lockfiles []string
	var argv []string
	for _, manager := range packageManagers {
		for _, lockfile := range manager.lockfiles {
			if !fileExists(filepath.Join(source, lockfile)) || wanted != "" && wanted != manager.name {
				continue
			}
			lockfiles = append(lockfiles, lockfile)
			if len(found) == 0 || found[len(found)-1] != manager.name {
				found = append(found, manager.name)
			}
			argv = manager.argv
		}
	}
	switch {
	case len(found) == 0 && wanted != "":
		return nil, problem(manifestName, remedy, "packageManager is %s, but its lockfile is missing or left out", wanted)
	case len(found) == 0:
		return nil, problem(manifestName, remedy, "it has dependencies, but there is no lockfile of npm, pnpm, Yarn or Bun")
	case len(found) > 1:
		return nil, problem(manifestName, "Name one in packageManager, for example \"packageManager\": \"npm@11.0.0\"", "there are lockfiles of several package managers: %s", strings.Join(lockfiles, ", "))
	}
	if found[0] == "yarn" && isModernYarn(source, manifest.PackageManager) {
		argv = []string{"yarn", "install", "--immutable"}
	}
	return argv, nil
}

// isModernYarn tells Yarn 2 and later from Yarn 1 by the version asked for, or by the form of the lockfile.
func isModernYarn(source, field string) bool {
	if field != "" {
		return !strings.HasPrefix(field, "yarn@1")
	}
	data, err := os.ReadFile(filepath.Join(source, "yarn.lock"))
	return err == nil && strings.Contains(string(data), "__metadata:")
}

// installEnvironment is what an installation can read of the environment of the build.
var installEnvironment = []string{
	"PATH", "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "npm_config_registry", "NPM_CONFIG_REGISTRY",
	"COREPACK_NPM_REGISTRY", "YARN_NPM_REGISTRY_SERVER",
}

// nobody is the user that installs when the build runs as root.
const nobody = 65534

// install runs the command in tree, a copy of the source of its own. As root it runs as nobody with an empty home;
// otherwise as the user who builds, with their home, so that their package cache and registry logins work.
func install(ctx context.Context, argv []string, secrets buildSecrets, tree, shared string, r reporter) error {
	name, err := exec.LookPath(argv[0])
	if err != nil {
		return problem(argv[0], "Install it, or set build.installCommand in helmr.config.ts", "the project's package manager is not on the PATH")
	}
	command := exec.CommandContext(ctx, name, argv[1:]...)
	command.Dir = tree
	home, err := os.UserHomeDir()
	if err != nil {
		home = shared
	}
	if os.Geteuid() == 0 {
		if home, err = giveToNobody(tree, shared); err != nil {
			return err
		}
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	command.Env = hostEnvironment(installEnvironment, "HOME="+home, "TMPDIR="+os.TempDir(), "CI=1")
	if len(secrets) > 0 {
		release, err := lend.Wrap(command, secrets, nobody)
		if err != nil {
			return err
		}
		defer release()
	}
	err = runCommand(ctx, command, func(line string) { r.log("%s", secrets.mask(line)) })
	if ended, ran := errors.AsType[*commandError](err); ran {
		return problem("install", "The output below says why", "`%s` failed (%s)", strings.Join(argv, " "), exitText(ended.err)).with(secrets.mask(ended.output))
	}
	if len(secrets) > 0 && errors.Is(err, fs.ErrPermission) {
		return problem("build.secrets", "Run the build as root, or allow user namespaces", "this user may not make a place for secrets that only the installation sees: %v", err)
	}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
		return problem("install", "Set TMPDIR to a folder like /tmp, or run the build as an ordinary user",
			"as root, dependencies are installed by the user nobody, who may not run %s or reach %s: %v", name, tree, err)
	}
	if err != nil {
		return fmt.Errorf("install dependencies: %w", err)
	}
	return checkInstalled(ctx, tree)
}

// giveToNobody makes the tree and a new home the property of nobody.
func giveToNobody(tree, shared string) (string, error) {
	home := filepath.Join(shared, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return "", fmt.Errorf("prepare installation: %w", err)
	}
	for _, dir := range []string{home, tree} {
		err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(name, nobody, nobody)
		})
		if err != nil {
			return "", fmt.Errorf("prepare installation: %w", err)
		}
	}
	return home, nil
}

// checkInstalled holds the installed tree to its limits.
func checkInstalled(ctx context.Context, tree string) error {
	installed := filepath.Join(tree, "node_modules")
	if _, err := os.Lstat(installed); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	w := walker{root: installed, limits: installedLimits}
	return w.walk(ctx, "", 0)
}
