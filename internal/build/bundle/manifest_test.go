package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/fault"
)

const (
	programDigest = "1111111111111111111111111111111111111111111111111111111111111111"
	imageDigest   = "2222222222222222222222222222222222222222222222222222222222222222"
)

func raw(name string) []api.SecretBinding {
	return []api.SecretBinding{{Secret: name, Env: &api.SecretEnv{Name: name, Mode: "raw"}}}
}

func number(n int64) *int64 { return &n }

// valid is a manifest with two Agents, two Templates and one image for both.
func valid() *Manifest {
	return &Manifest{
		Contract: Contract, Platform: Platform{Arch: Arch, OS: OS},
		Plan: Plan{
			Contract: IndexContract,
			Agents: []Agent{
				{ID: "fixer", Module: "agents/fixer.ts", Export: "fixer", Template: "box", CloseAfterIdleMs: number(1)},
				{ID: "reviewer", Module: "agents/reviewer.ts", Export: "default", Template: "large", HasInit: true, MaxTurnDurationMs: number(60_000)},
			},
			Templates: []Template{
				{ID: "box", Module: "agents/fixer.ts", Export: "fixer.template", Resources: Resources{MilliCPU: 1000, MemoryMiB: 512}},
				{ID: "large", Module: "agents/reviewer.ts", Export: "large", Resources: Resources{MilliCPU: 4000, MemoryMiB: 8192, DiskMiB: number(1 << 20)}, Network: policy.Policy{BlockAll: true}},
			},
		},
		Runtime: Runtime{Protocol: ProtocolVersion, SDK: "0.1.0"}, Program: Program{Digest: programDigest, Entry: Entry},
		TemplateImages: []TemplateImage{
			{Template: "box", Digest: imageDigest, Config: ImageConfig{Env: []string{"PATH=/usr/bin", "EMPTY="}, Workdir: "/", User: ""}},
			{Template: "large", Digest: imageDigest, Config: ImageConfig{Env: []string{}, Workdir: "/srv", User: "node:node"}},
		},
		Objects: []Object{
			{Digest: programDigest, SizeBytes: 1000, MediaType: ProgramMediaType},
			{Digest: imageDigest, SizeBytes: MaxObjectBytes - 1000, MediaType: ImageMediaType},
		},
	}
}

func encoded(t testing.TB, m *Manifest) []byte {
	t.Helper()
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestManifestRoundTrip(t *testing.T) {
	t.Parallel()
	data := encoded(t, valid())
	m, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if again := encoded(t, m); !bytes.Equal(again, data) {
		t.Errorf("comes back as\n%s\nfrom\n%s", again, data)
	}
	if bytes.ContainsAny(data, "\n\t") || !bytes.HasPrefix(data, []byte(`{"contract":"helmr.deployment-bundle.v0","objects":[`)) {
		t.Errorf("is not canonical: %s", data)
	}
}

func TestSpec_13_07_DigestIsSHA256OfTheManifest(t *testing.T) {
	t.Parallel()
	if got := Digest([]byte("abc")); got != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Error(got)
	}
}

// refusedManifest checks that Parse refuses data, with a code and a sentence that names the field.
func refusedManifest(t *testing.T, data []byte, code fault.Code, part string) {
	t.Helper()
	_, err := Parse(data)
	if err == nil {
		t.Fatalf("accepted %s", data[:min(len(data), 300)])
	}
	if !fault.Is(err, code) || !strings.Contains(err.Error(), part) {
		t.Errorf("%v\nlacks %s or %q", err, code, part)
	}
}

func TestSpec_13_06_BrokenRulesAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*Manifest)
		part   string
	}{
		"contract":         {func(m *Manifest) { m.Contract = "helmr.deployment-bundle.v1" }, "contract"},
		"platform":         {func(m *Manifest) { m.Platform.Arch = "arm64" }, "platform"},
		"protocol":         {func(m *Manifest) { m.Runtime.Protocol = 2 }, "runtime.protocol"},
		"sdk":              {func(m *Manifest) { m.Runtime.SDK = "" }, "runtime.sdk"},
		"entry":            {func(m *Manifest) { m.Program.Entry = "../index.mjs" }, "program.entry"},
		"program unknown":  {func(m *Manifest) { m.Program.Digest = strings.Repeat("3", 64) }, "program.digest"},
		"program an image": {func(m *Manifest) { m.Program.Digest = imageDigest }, "program.digest"},
		"plan contract":    {func(m *Manifest) { m.Plan.Contract = "" }, "plan.contract"},
		"no definitions":   {func(m *Manifest) { m.Plan.Agents, m.Plan.Templates = []Agent{}, []Template{} }, "0 definitions"},
		"null agents":      {func(m *Manifest) { m.Plan.Agents = nil }, "plan must have"},
		"agent ID":         {func(m *Manifest) { m.Plan.Agents[0].ID = "-x" }, "plan.agents[0].id"},
		"agent twice":      {func(m *Manifest) { m.Plan.Agents[1].ID = "fixer" }, "plan.agents[1].id"},
		"agents unsorted":  {func(m *Manifest) { m.Plan.Agents[1].ID = "a" }, "plan.agents[1].id"},
		"agent template":   {func(m *Manifest) { m.Plan.Agents[0].Template = "none" }, "plan.agents[0].template"},
		"module":           {func(m *Manifest) { m.Plan.Agents[0].Module = "/etc/passwd" }, "plan.agents[0].module"},
		"export":           {func(m *Manifest) { m.Plan.Agents[0].Export = "" }, "plan.agents[0].export"},
		"zero period":      {func(m *Manifest) { m.Plan.Agents[0].CloseAfterIdleMs = number(0) }, "close_after_idle_ms"},
		"inexact period":   {func(m *Manifest) { m.Plan.Agents[0].MaxTurnDurationMs = number(1<<53 + 1) }, "max_turn_duration_ms"},
		"hibernation":      {func(m *Manifest) { m.Plan.Agents[0].HibernateAfterIdleMs = number(0) }, "hibernate_after_idle_ms"},
		"template unused":  {func(m *Manifest) { m.Plan.Templates[0].DeleteAfterUnusedMs = number(0) }, "delete_after_unused_ms"},
		"prepare name":     {func(m *Manifest) { m.Plan.Templates[0].Prepare = "two words" }, "plan.templates[0].prepare"},
		"prepare network":  {func(m *Manifest) { m.Plan.Templates[0].PrepareNetwork = &policy.Policy{} }, "prepare_network is given without"},
		"prepare secrets":  {func(m *Manifest) { m.Plan.Templates[0].PrepareSecrets = raw("T") }, "prepare_secrets has entries without"},
		"prepare twice": {func(m *Manifest) {
			m.Plan.Templates[0].Prepare, m.Plan.Templates[0].PrepareSecrets = "box", append(raw("T"), raw("T")...)
		}, "prepare_secrets[1].env.name"},
		"prepare in image": {func(m *Manifest) {
			m.Plan.Templates[0].Prepare, m.Plan.Templates[0].PrepareSecrets = "box", raw("EMPTY")
		}, "prepare_secrets[0].env.name"},
		"prepare policy": {func(m *Manifest) {
			m.Plan.Templates[0].Prepare, m.Plan.Templates[0].PrepareNetwork = "box", &policy.Policy{BlockAll: true}
			m.Plan.Templates[0].PrepareSecrets = []api.SecretBinding{{Secret: "T", Env: &api.SecretEnv{Name: "T", Mode: "protected", AllowedOrigins: []string{"https://a.example"}}}}
		}, "prepare_secrets[0] is protected"},
		"zero refresh":    {func(m *Manifest) { m.Plan.Templates[0].RefreshEveryMs = number(0) }, "refresh_every_ms"},
		"no cpu":          {func(m *Manifest) { m.Plan.Templates[0].Resources.MilliCPU = 0 }, "milli_cpu"},
		"negative disk":   {func(m *Manifest) { m.Plan.Templates[0].Resources.DiskMiB = number(-1) }, "disk_mib"},
		"image missing":   {func(m *Manifest) { m.TemplateImages = m.TemplateImages[:1] }, "templateImages"},
		"images unsorted": {func(m *Manifest) { m.TemplateImages[0], m.TemplateImages[1] = m.TemplateImages[1], m.TemplateImages[0] }, "templateImages[0].template"},
		"image a program": {func(m *Manifest) { m.TemplateImages[0].Digest = programDigest }, "templateImages[0].digest"},
		"image env":       {func(m *Manifest) { m.TemplateImages[0].Config.Env = []string{"PATH"} }, "templateImages[0].config.env[0]"},
		"image env null":  {func(m *Manifest) { m.TemplateImages[0].Config.Env = nil }, "templateImages[0].config.env"},
		"image workdir":   {func(m *Manifest) { m.TemplateImages[0].Config.Workdir = "srv" }, "workdir"},
		"image user":      {func(m *Manifest) { m.TemplateImages[0].Config.User = "a\nb" }, "user"},
		"no objects":      {func(m *Manifest) { m.Objects = nil }, "objects"},
		"object digest":   {func(m *Manifest) { m.Objects[0].Digest = "ABC" }, "objects[0].digest"},
		"object twice":    {func(m *Manifest) { m.Objects[1].Digest = programDigest }, "objects[1].digest"},
		"object type":     {func(m *Manifest) { m.Objects[0].MediaType = "text/html" }, "objects[0].mediaType"},
		"object empty":    {func(m *Manifest) { m.Objects[0].SizeBytes = 0 }, "objects[0].sizeBytes"},
		"object large":    {func(m *Manifest) { m.Objects[1].SizeBytes = MaxObjectBytes + 1 }, "objects[1].sizeBytes"},
		"all too large":   {func(m *Manifest) { m.Objects[1].SizeBytes = MaxObjectBytes }, "together"},
		"object unused": {func(m *Manifest) {
			m.Objects = append(m.Objects, Object{Digest: strings.Repeat("3", 64), SizeBytes: 1, MediaType: ImageMediaType})
			m.Objects[1].SizeBytes = 1
		}, "objects[2] is used by nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := valid()
			test.change(m)
			if _, err := m.Encode(); err == nil {
				t.Error("Encode accepts it")
			}
			data, err := Canonical(m)
			if err != nil {
				t.Fatal(err)
			}
			refusedManifest(t, data, fault.BadRequest, test.part)
		})
	}
}

func TestSpec_13_06_OnlyCanonicalJSONIsAccepted(t *testing.T) {
	t.Parallel()
	text := string(encoded(t, valid()))
	replace := func(old, with string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the manifest", old)
		}
		return strings.Replace(text, old, with, 1)
	}
	for name, test := range map[string][2]string{
		"empty":            {"", "not valid JSON"},
		"not JSON":         {"{", "not valid JSON"},
		"array":            {"[]", "not valid JSON"},
		"null":             {"null", "contract"},
		"white space":      {text + "\n", "not canonical"},
		"two values":       {text + text, "something after"},
		"unknown field":    {replace(`"entry":`, `"extra":1,"entry":`), "extra is not a field"},
		"doubled field":    {replace(`"entry":"index.mjs"`, `"entry":"index.mjs","entry":"index.mjs"`), "not canonical"},
		"other case":       {replace(`"entry":`, `"Entry":`), "not canonical"},
		"escaped":          {replace(`"index.mjs"`, `"index\u002emjs"`), "not canonical"},
		"number form":      {replace(`"sizeBytes":1000`, `"sizeBytes":1e3`), "sizeBytes has the wrong type"},
		"wrong type":       {replace(`"sizeBytes":1000`, `"sizeBytes":"1000"`), "sizeBytes has the wrong type"},
		"null in optional": {replace(`"has_init":true,`, `"has_init":true,"max_turn_duration_ms":null,`), "not canonical"},
		"missing null":     {replace(`"hibernate_after_idle_ms":null,`, ``), "not canonical"},
		"not UTF-8":        {replace(`"0.1.0"`, "\"0.1\xff\""), "not UTF-8"},
		"deep":             {strings.Repeat("[", 100_000), "not valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedManifest(t, []byte(test[0]), fault.BadRequest, test[1])
		})
	}
}

func TestSpec_23_01_ManifestLimits(t *testing.T) {
	t.Parallel()
	refusedManifest(t, bytes.Repeat([]byte(" "), MaxManifestBytes+1), fault.RequestTooLarge, "16777217 bytes")

	many := func(templates, agents int) *Manifest {
		m := valid()
		m.Plan.Agents, m.Plan.Templates, m.TemplateImages, m.Objects = []Agent{}, nil, nil, m.Objects[:1]
		for i := range templates {
			id := fmt.Sprintf("t%05d", i)
			digest := fmt.Sprintf("2%063d", i)
			m.Plan.Templates = append(m.Plan.Templates, Template{ID: id, Module: "a.ts", Export: id, Resources: Resources{MilliCPU: 1, MemoryMiB: 1}})
			m.TemplateImages = append(m.TemplateImages, TemplateImage{Template: id, Digest: digest, Config: ImageConfig{Env: []string{}, Workdir: "/"}})
			m.Objects = append(m.Objects, Object{Digest: digest, SizeBytes: 1, MediaType: ImageMediaType})
		}
		for i := range agents {
			id := fmt.Sprintf("a%05d", i)
			m.Plan.Agents = append(m.Plan.Agents, Agent{ID: id, Module: "a.ts", Export: id, Template: "t00000"})
		}
		return m
	}
	if _, err := Parse(encoded(t, many(MaxImages, MaxDefinitions-MaxImages))); err != nil {
		t.Errorf("refused at its limits: %v", err)
	}
	for part, m := range map[string]*Manifest{"plan.templates has 257 items": many(MaxImages+1, 1), "10001 definitions": many(1, MaxDefinitions)} {
		data, err := Canonical(m)
		if err != nil {
			t.Fatal(err)
		}
		refusedManifest(t, data, fault.BadRequest, part)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(encoded(f, valid()))
	f.Add([]byte(`{"contract":"helmr.deployment-bundle.v0","objects":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			return
		}
		again, err := m.Encode()
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted %q, which encodes as %q (%v)", data, again, err)
		}
		var plain any
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatal(err)
		}
		if canonical, err := Canonical(plain); err != nil || !bytes.Equal(canonical, data) {
			t.Fatalf("accepted %q, which is canonically %q (%v)", data, canonical, err)
		}
	})
}
