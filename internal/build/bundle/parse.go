package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/secret/binding"
)

// The limits of a bundle. A value at its limit is accepted.
const (
	MaxManifestBytes = 16 << 20
	MaxImages        = 256
	MaxObjects       = MaxImages + 1
	MaxObjectBytes   = 4 << 30
	MaxTotalBytes    = 4 << 30
	MaxDefinitions   = 10_000

	// The unpacked program holds what was installed, so it has the limits of the installed tree.
	MaxProgramBytes     = 10 << 30
	MaxProgramFileBytes = 1 << 30
	MaxProgramFiles     = 200_000

	maxNumber      = 1<<53 - 1 // every JSON reader keeps integers up to here
	maxPathBytes   = 4096
	maxPathDepth   = 128
	maxConfigBytes = 256 << 10
)

var (
	declaredID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	hexDigest  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Parse reads a manifest that anybody may have sent. It accepts exactly the canonical form of a manifest that holds
// every rule of the format; anything else is refused with bad_request (request_too_large above 16 MiB) and a sentence
// that names the field.
func Parse(manifest []byte) (*Manifest, error) {
	if len(manifest) > MaxManifestBytes {
		return nil, tooLarge("manifest", "%d bytes; at most %d are allowed", len(manifest), MaxManifestBytes)
	}
	if !utf8.Valid(manifest) {
		return nil, bad("manifest", "is not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(manifest))
	decoder.DisallowUnknownFields()
	var m Manifest
	if err := decoder.Decode(&m); err != nil {
		return nil, decodeError(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, bad("manifest", "has something after the JSON object")
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	canonical, err := Canonical(&m)
	if err != nil {
		return nil, bad("manifest", "cannot be written as canonical JSON")
	}
	// Doubled keys, other spellings of a key, null where a field may only be absent: all of them end up here.
	if !bytes.Equal(canonical, manifest) {
		return nil, bad("manifest", "is not canonical JSON (RFC 8785) of contract %s", Contract)
	}
	return &m, nil
}

func decodeError(err error) error {
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && typed.Field != "" {
		return bad(typed.Field, "has the wrong type (%s)", typed.Value)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return bad(strings.Trim(field, `"`), "is not a field of contract %s", Contract)
	}
	return bad("manifest", "is not valid JSON: %v", err)
}

func bad(field, format string, args ...any) error {
	return fault.New(fault.BadRequest, "Bundle %s %s.", field, fmt.Sprintf(format, args...)).With("field", field)
}

func tooLarge(field, format string, args ...any) error {
	return fault.New(fault.RequestTooLarge, "Bundle %s has %s.", field, fmt.Sprintf(format, args...)).With("field", field)
}

func (m *Manifest) validate() error {
	switch {
	case m.Contract != Contract:
		return bad("contract", "must be %q", Contract)
	case m.Platform != Platform{Arch: Arch, OS: OS}:
		return bad("platform", "must be arch %q and os %q", Arch, OS)
	case m.Runtime.Protocol != ProtocolVersion:
		return bad("runtime.protocol", "must be %d; build it again with the CLI that matches this server", ProtocolVersion)
	case m.Runtime.SDK == "" || len(m.Runtime.SDK) > 64:
		return bad("runtime.sdk", "must be a version of 1 to 64 bytes")
	case m.Program.Entry != Entry:
		return bad("program.entry", "must be %q", Entry)
	}
	if err := m.Plan.validate(); err != nil {
		return err
	}
	objects, err := m.validateObjects()
	if err != nil {
		return err
	}
	return m.validateReferences(objects)
}

func (m *Manifest) validateObjects() (map[string]string, error) {
	if m.Objects == nil {
		return nil, bad("objects", "is missing")
	}
	if len(m.Objects) > MaxObjects {
		return nil, bad("objects", "has %d items; at most %d are allowed", len(m.Objects), MaxObjects)
	}
	types := make(map[string]string, len(m.Objects))
	var total int64
	for i, o := range m.Objects {
		field := fmt.Sprintf("objects[%d]", i)
		switch {
		case !hexDigest.MatchString(o.Digest):
			return nil, bad(field+".digest", "must be 64 lower-case hex digits")
		case i > 0 && o.Digest <= m.Objects[i-1].Digest:
			return nil, bad(field+".digest", "is not in ascending order or is there twice")
		case o.SizeBytes < 1 || o.SizeBytes > MaxObjectBytes:
			return nil, bad(field+".sizeBytes", "must be 1 to %d", int64(MaxObjectBytes))
		case o.MediaType != ImageMediaType && o.MediaType != ProgramMediaType:
			return nil, bad(field+".mediaType", "must be %q or %q", ImageMediaType, ProgramMediaType)
		}
		total += o.SizeBytes
		types[o.Digest] = o.MediaType
	}
	if total > MaxTotalBytes {
		return nil, bad("objects", "are %d bytes together; at most %d are allowed", total, int64(MaxTotalBytes))
	}
	return types, nil
}

// validateReferences checks that templates, images and objects belong together with nothing left over.
func (m *Manifest) validateReferences(objects map[string]string) error {
	if objects[m.Program.Digest] != ProgramMediaType {
		return bad("program.digest", "does not name an object with media type %q", ProgramMediaType)
	}
	if len(m.TemplateImages) != len(m.Plan.Templates) || m.TemplateImages == nil {
		return bad("templateImages", "must have one item for each of the %d Templates", len(m.Plan.Templates))
	}
	used := map[string]bool{m.Program.Digest: true}
	for i, image := range m.TemplateImages {
		field := fmt.Sprintf("templateImages[%d]", i)
		if image.Template != m.Plan.Templates[i].ID {
			return bad(field+".template", "must be %q: one item for each Template, sorted by ID", m.Plan.Templates[i].ID)
		}
		if objects[image.Digest] != ImageMediaType {
			return bad(field+".digest", "does not name an object with media type %q", ImageMediaType)
		}
		if err := image.Config.validate(field + ".config"); err != nil {
			return err
		}
		t := &m.Plan.Templates[i]
		if err := binding.CheckImage(fmt.Sprintf("plan.templates[%d].secrets", i), t.Secrets, image.Config.Env); err != nil {
			return badBinding(err)
		}
		if err := binding.CheckImage(fmt.Sprintf("plan.templates[%d].prepare_secrets", i), t.PrepareSecrets, image.Config.Env); err != nil {
			return badBinding(err)
		}
		used[image.Digest] = true
	}
	for i, o := range m.Objects {
		if !used[o.Digest] {
			return bad(fmt.Sprintf("objects[%d]", i), "is used by nothing")
		}
	}
	return nil
}

func (c ImageConfig) validate(field string) error {
	if c.Env == nil {
		return bad(field+".env", "is missing")
	}
	size := len(c.Workdir) + len(c.User)
	for i, entry := range c.Env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.ContainsRune(entry, 0) {
			return bad(fmt.Sprintf("%s.env[%d]", field, i), "must be NAME=VALUE")
		}
		size += len(entry)
	}
	switch {
	case size > maxConfigBytes:
		return bad(field, "is larger than %d bytes", maxConfigBytes)
	case !path.IsAbs(c.Workdir) || strings.ContainsRune(c.Workdir, 0) || len(c.Workdir) > maxPathBytes:
		return bad(field+".workdir", "must be an absolute path")
	case strings.ContainsAny(c.User, "\x00\n") || len(c.User) > 256:
		return bad(field+".user", "must be a user of at most 256 bytes")
	}
	return nil
}

func (p *Plan) validate() error {
	if p.Contract != IndexContract {
		return bad("plan.contract", "must be %q", IndexContract)
	}
	if p.Agents == nil || p.Templates == nil {
		return bad("plan", "must have the lists agents and templates")
	}
	if n := len(p.Agents) + len(p.Templates); n < 1 || n > MaxDefinitions {
		return bad("plan", "has %d definitions; 1 to %d are allowed", n, MaxDefinitions)
	}
	if len(p.Templates) > MaxImages {
		return bad("plan.templates", "has %d items; at most %d are allowed", len(p.Templates), MaxImages)
	}
	templates := make(map[string]bool, len(p.Templates))
	for i := range p.Templates {
		t := &p.Templates[i]
		field := fmt.Sprintf("plan.templates[%d]", i)
		if i > 0 && t.ID <= p.Templates[i-1].ID {
			return bad(field+".id", "is not in ascending order or is there twice")
		}
		if err := t.validate(field); err != nil {
			return err
		}
		templates[t.ID] = true
	}
	for i := range p.Agents {
		a := &p.Agents[i]
		field := fmt.Sprintf("plan.agents[%d]", i)
		if i > 0 && a.ID <= p.Agents[i-1].ID {
			return bad(field+".id", "is not in ascending order or is there twice")
		}
		if err := a.validate(field); err != nil {
			return err
		}
		if !templates[a.Template] {
			return bad(field+".template", "names no Template of the plan: %q", a.Template)
		}
	}
	return nil
}

func (a *Agent) validate(field string) error {
	if err := validateOrigin(field, a.ID, a.Module, a.Export); err != nil {
		return err
	}
	for name, period := range map[string]*int64{
		"max_turn_duration_ms": a.MaxTurnDurationMs, "close_after_idle_ms": a.CloseAfterIdleMs, "hibernate_after_idle_ms": a.HibernateAfterIdleMs,
	} {
		if !validNumber(period) {
			return bad(field+"."+name, "must be a positive number of milliseconds")
		}
	}
	return nil
}

func (t *Template) validate(field string) error {
	if err := validateOrigin(field, t.ID, t.Module, t.Export); err != nil {
		return err
	}
	for name, amount := range map[string]*int64{
		"milli_cpu": &t.Resources.MilliCPU, "memory_mib": &t.Resources.MemoryMiB, "disk_mib": t.Resources.DiskMiB,
	} {
		if !validNumber(amount) {
			return bad(field+".resources."+name, "must be a positive whole number")
		}
	}
	if err := validateSecrets(field+".secrets", t.Secrets); err != nil {
		return err
	}
	if err := binding.CheckPolicy(field+".secrets", t.Secrets, t.Network); err != nil {
		return badBinding(err)
	}
	if err := t.validatePreparation(field); err != nil {
		return err
	}
	if !validNumber(t.DeleteAfterUnusedMs) {
		return bad(field+".delete_after_unused_ms", "must be a positive whole number")
	}
	return nil
}

func (t *Template) validatePreparation(field string) error {
	switch {
	case t.Prepare != "" && !declaredID.MatchString(t.Prepare):
		return bad(field+".prepare", "must match %s", declaredID)
	case t.Prepare == "" && t.PrepareNetwork != nil:
		return bad(field+".prepare_network", "is given without a prepare callback")
	case t.Prepare == "" && len(t.PrepareSecrets) > 0:
		return bad(field+".prepare_secrets", "has entries without a prepare callback")
	case !validNumber(t.RefreshEveryMs):
		return bad(field+".refresh_every_ms", "must be a positive number of milliseconds")
	}
	if err := validateSecrets(field+".prepare_secrets", t.PrepareSecrets); err != nil {
		return err
	}
	if err := binding.CheckPolicy(field+".prepare_secrets", t.PrepareSecrets, t.PreparePolicy()); err != nil {
		return badBinding(err)
	}
	return nil
}

func validateSecrets(field string, bindings []api.SecretBinding) error {
	normal, err := binding.Normalize(field, bindings)
	if err != nil {
		return badBinding(err)
	}
	if len(normal) > 0 && !reflect.DeepEqual(normal, bindings) {
		return bad(field, "is not in normal form: origins are sorted, each once, without :443 and a final slash")
	}
	return nil
}

func badBinding(err error) error {
	if e, ok := errors.AsType[*binding.Error](err); ok {
		return bad(e.Field, "%s", e.Problem)
	}
	return err
}

// validNumber accepts an absent number and a positive one that every JSON reader keeps exactly.
func validNumber(n *int64) bool { return n == nil || *n > 0 && *n <= maxNumber }

func validateOrigin(field, id, module, export string) error {
	switch {
	case !declaredID.MatchString(id):
		return bad(field+".id", "must match %s", declaredID)
	case !validPath(module):
		return bad(field+".module", "must be a path under the project root")
	case export == "" || len(export) > 1024 || strings.ContainsFunc(export, func(r rune) bool { return r < ' ' }):
		return bad(field+".export", "must be an export name")
	}
	return nil
}

// validPath tells whether name is a plain slash-separated path below some root, within the limits of names.
func validPath(name string) bool {
	return name != "." && fs.ValidPath(name) && len(name) <= maxPathBytes && strings.Count(name, "/") < maxPathDepth &&
		!strings.ContainsAny(name, "\x00\\")
}
