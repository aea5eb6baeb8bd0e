package image

import "testing"

func TestCheckSaysHowToMend(t *testing.T) {
	t.Parallel()
	names := map[string]Finding{}
	for _, f := range Check(t.Context(), t.TempDir()) {
		names[f.Name] = f
		if f.Detail == "" || f.OK == (f.Fix != "") {
			t.Errorf("%+v: says too little or too much", f)
		}
	}
	for _, name := range []string{"docker buildx", "buildctl", "buildah", "mkfs.erofs", "mmdebstrap", "npm"} {
		if _, ok := names[name]; !ok {
			t.Errorf("%s is not looked at", name)
		}
	}
	// Without these two the other tests of this package would not run.
	if !names["mkfs.erofs"].OK || !names["buildah"].OK {
		t.Errorf("mkfs.erofs: %+v, buildah: %+v", names["mkfs.erofs"], names["buildah"])
	}
}
