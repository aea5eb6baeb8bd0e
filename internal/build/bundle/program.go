package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// The window bounds what a reader must hold in memory, whatever the archive claims.
const zstdWindow = 8 << 20

// ProgramFile is one file of a program archive: Data if it is not nil, otherwise the file named Source.
type ProgramFile struct {
	Path       string // slash-separated, below the program's root
	Source     string
	Data       []byte
	Executable bool
}

// PackProgram writes files as a program archive. Equal files give equal bytes: names are sorted, and times, owners and
// the umask leave no trace. It sorts files in place.
func PackProgram(w io.Writer, files []ProgramFile) error {
	slices.SortFunc(files, func(a, b ProgramFile) int { return strings.Compare(a.Path, b.Path) })
	if len(files) > MaxProgramFiles {
		return fmt.Errorf("pack program: %d files; at most %d are allowed", len(files), MaxProgramFiles)
	}
	// One encoder thread: with more, the cut points of the output would follow the scheduler.
	compressor, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow))
	if err != nil {
		return fmt.Errorf("pack program: %w", err)
	}
	archive := tar.NewWriter(compressor)
	var total int64
	for i, file := range files {
		if !validPath(file.Path) || i > 0 && file.Path == files[i-1].Path {
			return fmt.Errorf("pack program: %q is not a valid path or is there twice", file.Path)
		}
		n, err := packFile(archive, file)
		if err != nil {
			return fmt.Errorf("pack program: %s: %w", file.Path, err)
		}
		if total += n; total > MaxProgramBytes {
			return fmt.Errorf("pack program: more than %d bytes", int64(MaxProgramBytes))
		}
	}
	if err := errors.Join(archive.Close(), compressor.Close()); err != nil {
		return fmt.Errorf("pack program: %w", err)
	}
	return nil
}

func packFile(archive *tar.Writer, file ProgramFile) (int64, error) {
	var content io.Reader = bytes.NewReader(file.Data)
	size := int64(len(file.Data))
	if file.Data == nil {
		f, err := os.Open(file.Source)
		if err != nil {
			return 0, err
		}
		defer func() { _ = f.Close() }() // only read, nothing can be lost
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		content, size = f, info.Size()
	}
	if size > MaxProgramFileBytes {
		return 0, fmt.Errorf("%d bytes; at most %d are allowed", size, MaxProgramFileBytes)
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: file.Path, Size: size, Mode: programMode(file.Executable),
		ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	}
	if err := archive.WriteHeader(header); err != nil {
		return 0, err
	}
	return io.Copy(archive, content)
}

func programMode(executable bool) int64 {
	if executable {
		return 0o755
	}
	return 0o644
}

// UnpackProgram checks that r is the program object with that digest and unpacks it into the folder dir, which must not
// exist. The archive may be hostile: nothing is written outside dir, sizes and counts are bounded, and dir appears only
// when everything was read, checked and written to the disk.
func UnpackProgram(r io.Reader, digest, dir string) (err error) {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("unpack program: %w", err)
	}
	temporary, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".")
	if err != nil {
		return fmt.Errorf("unpack program: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }() // gone already after the rename
	hash := sha256.New()
	limited := &io.LimitedReader{R: io.TeeReader(r, hash), N: MaxObjectBytes + 1}
	if err := unpackInto(limited, temporary); err != nil {
		return fmt.Errorf("unpack program %s: %w", digest, err)
	}
	if _, err := io.Copy(io.Discard, limited); err != nil {
		return fmt.Errorf("unpack program %s: %w", digest, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); limited.N <= 0 || got != digest {
		return fmt.Errorf("unpack program %s: the archive has another digest: %s", digest, got)
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return fmt.Errorf("unpack program: %w", err)
	}
	if err := publish(temporary, dir); err != nil {
		return fmt.Errorf("unpack program: %w", err)
	}
	return nil
}

// publish makes what is in temporary durable and gives it its name, unless the name is taken.
func publish(temporary, dir string) error {
	folder, err := os.Open(temporary)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }() // synced below
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: temporary, New: dir, Err: err}
	}
	return nil
}

func unpackInto(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // a folder: nothing can be lost
	decompressor, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
	if err != nil {
		return err
	}
	defer decompressor.Close()
	// Headers take room too: at most a kilobyte each for a plain name, more is refused by the sum.
	bounded := &io.LimitedReader{R: decompressor, N: MaxProgramBytes + MaxProgramFiles*2048}
	archive := tar.NewReader(bounded)
	var total int64
	count, last, hasEntry := 0, "", false
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		count++
		total += header.Size
		switch {
		case header.Typeflag != tar.TypeReg:
			return fmt.Errorf("%q is not a plain file", header.Name)
		case !validPath(header.Name):
			return fmt.Errorf("%q is not a valid path", header.Name)
		case header.Name <= last:
			return fmt.Errorf("%q is out of order or there twice", header.Name)
		case count > MaxProgramFiles:
			return fmt.Errorf("more than %d files", MaxProgramFiles)
		case header.Size > MaxProgramFileBytes || total > MaxProgramBytes:
			return fmt.Errorf("%q is too large", header.Name)
		}
		last = header.Name
		hasEntry = hasEntry || header.Name == Entry
		if err := unpackFile(root, archive, header); err != nil {
			return err
		}
	}
	if !hasEntry {
		return fmt.Errorf("%s is missing", Entry)
	}
	rest, err := io.Copy(io.Discard, bounded)
	if err != nil {
		return err
	}
	if rest > 1<<20 {
		return errors.New("something follows the archive")
	}
	return nil
}

func unpackFile(root *os.Root, content io.Reader, header *tar.Header) error {
	if parent := path.Dir(header.Name); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	mode := os.FileMode(programMode(header.Mode&0o111 != 0))
	file, err := root.OpenFile(header.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, content, header.Size)
	// Chmod, because the umask of the Worker must not decide what Agents may read.
	return errors.Join(err, file.Chmod(mode), file.Close())
}
