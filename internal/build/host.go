package build

import (
	"fmt"
	"sync"

	"github.com/evanw/esbuild/pkg/api"

	runtime "helmr.dev/helmr/runtime/node"
)

// hostNamespace and hostName name the embedded source of the host program.
const (
	hostNamespace = "helmr-runtime"
	hostName      = "@helmr/runtime"
)

// HostProgram gives the program that hosts an Agent inside a Computer: one ES module for Node.js 22 and later, bundled
// from source that the binary carries. Equal binaries give equal bytes. The caller must not change them.
func HostProgram() ([]byte, error) { return hostProgram() }

var hostProgram = sync.OnceValues(func() ([]byte, error) {
	result := api.Build(api.BuildOptions{
		EntryPoints:    []string{hostName},
		AbsWorkingDir:  "/",
		Outfile:        "/host.mjs",
		Write:          false,
		Bundle:         true,
		Format:         api.FormatESModule,
		Platform:       api.PlatformNode,
		Engines:        []api.Engine{{Name: api.EngineNode, Version: "22"}},
		Charset:        api.CharsetUTF8,
		Sourcemap:      api.SourceMapInline,
		SourcesContent: api.SourcesContentExclude,
		LogLevel:       api.LogLevelSilent,
		TsconfigRaw:    `{"compilerOptions":{"target":"ES2023"}}`,
		Plugins: []api.Plugin{
			embeddedSource(hostNamespace, hostName, runtime.Files, map[string]string{hostName: "src/host.ts"}),
			embeddedSDK(),
		},
	})
	if len(result.Errors) > 0 {
		return nil, fmt.Errorf("bundle the host program: %w", bundleProblem(result.Errors))
	}
	return result.OutputFiles[0].Contents, nil
})
