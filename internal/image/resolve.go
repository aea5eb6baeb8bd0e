package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"helmr.dev/helmr/internal/fault"
)

// registryPatience bounds one question to a registry about a manifest; layers may take longer.
const registryPatience = 30 * time.Second

// mirrors reads HELMR_IMAGE_MIRROR: a comma-separated list of "registry=mirror", where a bare "mirror" stands for
// docker.io. A mirror is host[:port][/prefix], with http:// in front when it speaks plain HTTP.
func mirrors(setting string) map[string]string {
	m := map[string]string{}
	for part := range strings.SplitSeq(setting, ",") {
		registry, mirror, found := strings.Cut(strings.TrimSpace(part), "=")
		if !found {
			registry, mirror = dockerHub, registry
		}
		if mirror = strings.TrimRight(mirror, "/"); mirror != "" {
			m[registry] = mirror
		}
	}
	return m
}

// place is somewhere an image may come from.
type place struct {
	what string
	ref  string
	opts []name.Option
}

func places(full, mirrorSetting string) []place {
	registry, rest, _ := strings.Cut(full, "/")
	var all []place
	if m, ok := mirrors(mirrorSetting)[registry]; ok {
		p := place{what: "mirror " + m, ref: strings.TrimPrefix(strings.TrimPrefix(m, "http://"), "https://") + "/" + rest}
		if strings.HasPrefix(m, "http://") {
			p.opts = append(p.opts, name.Insecure)
		}
		all = append(all, p)
	}
	return append(all, place{what: "registry " + registry, ref: full})
}

// Resolve gives the store's image for ref, which is asked for by the image named key. It looks in the local store
// (images put there on purpose), then at the mirror of HELMR_IMAGE_MIRROR, then at the registry; what comes from there
// is kept in the store, for when neither answers.
func (s *Store) Resolve(ctx context.Context, key, ref string, say func(string)) (Entry, error) {
	full, err := Normalize(ref)
	if err != nil {
		return Entry{}, fault.New(fault.InvalidArguments, "Image %q: %q is not an image reference.", key, ref).Because(err)
	}
	kept, found, err := s.Find(full)
	if err != nil {
		return Entry{}, err
	}
	if found && kept.Origin != OriginRegistry {
		return kept, nil
	}
	tried := []string{"local store: no such image"}
	var causes []error
	for _, p := range places(full, os.Getenv("HELMR_IMAGE_MIRROR")) {
		say(fmt.Sprintf("asking %s for %s", p.what, Familiar(full)))
		e, err := s.pull(ctx, full, p, kept)
		if err == nil {
			return e, nil
		}
		if ctx.Err() != nil {
			return Entry{}, context.Cause(ctx)
		}
		tried = append(tried, p.what+": "+reason(err))
		causes = append(causes, err)
	}
	if found {
		say(fmt.Sprintf("using the copy of %s from %s: %s", Familiar(full), kept.Created.Format(time.DateOnly), strings.Join(tried[1:], "; ")))
		return kept, nil
	}
	return Entry{}, notFound(key, full, tried).Because(errors.Join(causes...))
}

func notFound(key, full string, tried []string) *fault.Error {
	short := Familiar(full)
	text := fmt.Sprintf("Image %q needs the base image %s, and it cannot be had.\n", key, short)
	for _, t := range tried {
		text += "  tried " + t + "\n"
	}
	text += "To mend it, do one of these:\n"
	if short == BaseRef {
		text += "  helmr image base                    make it here out of Debian packages and npm's Node\n"
	}
	text += fmt.Sprintf("  helmr image import %s SOURCE    SOURCE: OCI layout, image tar or root folder\n", short)
	text += "  set HELMR_IMAGE_MIRROR to a registry that this machine reaches"
	return fault.New(fault.Unavailable, "%s", text)
}

// pull takes the image from p unless the store's copy is the same.
func (s *Store) pull(ctx context.Context, full string, p place, kept Entry) (Entry, error) {
	ref, err := name.ParseReference(p.ref, p.opts...)
	if err != nil {
		return Entry{}, err
	}
	asking, cancel := context.WithTimeout(ctx, registryPatience)
	defer cancel()
	opts := []remote.Option{
		remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("helmr"),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}),
		remote.WithRetryBackoff(remote.Backoff{Duration: 300 * time.Millisecond, Factor: 2, Steps: 2}),
	}
	img, err := remote.Image(ref, append(opts, remote.WithContext(asking))...)
	if err != nil {
		return Entry{}, err
	}
	digest, err := img.Digest()
	if err != nil {
		return Entry{}, err
	}
	// Layers are read through another client: the first one ends with the question's patience.
	if img, err = remote.Image(ref.Context().Digest(digest.String()), append(opts, remote.WithContext(ctx))...); err != nil {
		return Entry{}, err
	}
	raw, err := fromImage(img)
	if err != nil {
		return Entry{}, err
	}
	if kept.Ref != "" && s.holds(kept, raw) {
		return kept, nil
	}
	return s.put(ctx, full, OriginRegistry, raw)
}

// holds tells whether the stored image has the layers and configuration of raw.
func (s *Store) holds(e Entry, raw rawImage) bool {
	have, _, err := s.config(e)
	if err != nil {
		return false
	}
	diffs := make([]v1.Hash, len(raw.layers))
	for i, l := range raw.layers {
		diffs[i] = l.diffID
	}
	want, err := jsonDigest(plainConfig(raw.config, diffs))
	return err == nil && want == have
}

// reason is the short form of a registry's or the network's refusal.
func reason(err error) string {
	text := strings.TrimSpace(err.Error())
	if i := strings.LastIndex(text, "\n"); i >= 0 {
		text = text[i+1:]
	}
	if len(text) > 300 {
		text = text[:300] + "..."
	}
	return text
}
