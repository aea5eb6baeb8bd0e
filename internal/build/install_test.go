package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSpec_02_12_PackageManagerIsDetected(t *testing.T) {
	t.Parallel()
	const needs = `"dependencies":{"zod":"^3","@helmr/sdk":"0.1.0"}`
	for name, test := range map[string]struct {
		files []string
		want  string
	}{
		"nothing to install":    {nil, ""},
		"only the SDK":          {[]string{"package.json", `{"dependencies":{"@helmr/sdk":"0.1.0"}}`}, ""},
		"development only":      {[]string{"package.json", `{"devDependencies":{"typescript":"7"}}`, "package-lock.json", "{}"}, ""},
		"npm":                   {[]string{"package.json", "{" + needs + "}", "package-lock.json", "{}"}, "npm ci --no-audit --no-fund"},
		"npm shrinkwrap":        {[]string{"package.json", "{" + needs + "}", "npm-shrinkwrap.json", "{}", "package-lock.json", "{}"}, "npm ci --no-audit --no-fund"},
		"pnpm":                  {[]string{"package.json", "{" + needs + "}", "pnpm-lock.yaml", ""}, "pnpm install --frozen-lockfile"},
		"bun":                   {[]string{"package.json", "{" + needs + "}", "bun.lock", ""}, "bun install --frozen-lockfile"},
		"yarn 1":                {[]string{"package.json", "{" + needs + "}", "yarn.lock", "# yarn lockfile v1"}, "yarn install --frozen-lockfile"},
		"yarn 4":                {[]string{"package.json", "{" + needs + "}", "yarn.lock", "__metadata:\n  version: 8\n"}, "yarn install --immutable"},
		"yarn 4 by its field":   {[]string{"package.json", `{"packageManager":"yarn@4.5.0",` + needs + "}", "yarn.lock", ""}, "yarn install --immutable"},
		"field among lockfiles": {[]string{"package.json", `{"packageManager":"pnpm@9.1.0+sha256.abc",` + needs + "}", "yarn.lock", "", "pnpm-lock.yaml", ""}, "pnpm install --frozen-lockfile"},
		"optional":              {[]string{"package.json", `{"optionalDependencies":{"x":"1"}}`, "bun.lockb", ""}, "bun install --frozen-lockfile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv, err := installCommand(project(t, test.files...), config{})
			if err != nil || strings.Join(argv, " ") != test.want {
				t.Errorf("%q, %v; want %q", argv, err, test.want)
			}
		})
	}
	var c config
	c.Build.InstallCommand = "make deps"
	argv, err := installCommand(project(t), c)
	if err != nil || !slices.Equal(argv, []string{"/bin/bash", "-euo", "pipefail", "-c", "make deps"}) {
		t.Errorf("%q, %v", argv, err)
	}
	_, err = installCommand(project(t, "package.json", `{"packageManager":"pnpm@9.1.0",`+needs+"}", "yarn.lock", ""), config{})
	refused(t, err, "packageManager is pnpm", "lockfile is missing")
}

// tarball writes an npm package archive.
func tarball(t *testing.T, name string, files map[string]string) {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	archive := tar.NewWriter(zipped)
	for file, content := range files {
		if err := archive.WriteHeader(&tar.Header{Name: "package/" + file, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestNpmInstalls runs the real npm, with a package that lies in the project: no registry is asked.
func TestNpmInstalls(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	dir := project(t, "package.json", `{"name":"test","private":true,"dependencies":{"greeting":"file:vendor/greeting.tgz"}}`,
		".helmrignore", "node_modules/\n",
		"agents/one.ts", imports+`
import { greeting, installedBy } from "greeting"
export const one = agent({ id: "one", template: box, turn: () => greeting + installedBy })`)
	tarball(t, filepath.Join(dir, "vendor/greeting.tgz"), map[string]string{
		"package.json": `{"name":"greeting","version":"1.0.0","type":"module","main":"index.js","scripts":{"install":"node install.cjs"}}`,
		"install.cjs":  `require("fs").writeFileSync("user.js", "export const installedBy = " + process.getuid())`,
		"index.js":     `export { installedBy } from "./user.js"` + "\n" + `export const greeting = "hello from "`,
	})
	lock := exec.CommandContext(t.Context(), "npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--offline")
	lock.Dir = dir
	lock.Env = append(os.Environ(), "npm_config_cache="+t.TempDir())
	if out, err := lock.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, r, err := prepared(t, dir)
	if err != nil {
		t.Fatalf("%v\n%v", err, r.events)
	}
	uid := "65534"
	if os.Geteuid() != 0 {
		uid = strings.TrimSpace(evaluate(t, unpacked(t, assembled(t, b)), `console.log(process.getuid())`))
	}
	if got := evaluate(t, unpacked(t, assembled(t, b)), `console.log(program.agents.get("one").turn())`); got != "hello from "+uid {
		t.Errorf("%q, want the user %s", got, uid)
	}
	if _, err := os.Lstat(filepath.Join(b.source, "node_modules")); err == nil {
		t.Error("packages were installed into the captured source, which images copy from")
	}
	if _, err := os.Lstat(filepath.Join(dir, "node_modules")); err == nil {
		t.Error("packages were installed into the project itself")
	}
}

func TestInstallationDoesNotSeeSecretsOfTheBuild(t *testing.T) {
	t.Setenv("HELMR_TEST_TOKEN", "hush")
	_, _, err := prepared(t, project(t, "helmr.config.ts", `export default { build: { installCommand: 'test -z "${HELMR_TEST_TOKEN:-}" && test -w . && test -w "$HOME"' } }`))
	if err != nil {
		t.Error(err)
	}
}
