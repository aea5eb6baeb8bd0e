package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/image"
)

func imageCommand() *cobra.Command {
	return groupCommand("image", "Keep base images for builds on this machine", `  helmr image base
  helmr image import debian:bookworm-slim ./debian.tar
  helmr image list`, imageImportCommand(), imageListCommand(), imageRemoveCommand(), imageBaseCommand(), imagePruneCommand())
}

// openImages opens the store that builds use.
func openImages() (*image.Store, error) {
	dir, err := image.CacheDir()
	if err != nil {
		return nil, err
	}
	return image.OpenStore(dir)
}

func imageImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import REF SOURCE",
		Short: "Put an image into the local store",
		Long: `Puts an image into the local store under the name REF. Builds take a base from there before they ask a registry.
SOURCE is an OCI layout folder, the root folder of a filesystem, an OCI archive, what "docker save" writes, or a tar of
a filesystem; a tar may be gzipped.`,
		Example: `  helmr image import node:24-bookworm node.tar
  helmr image import registry.example.com/tools:1 ./layout`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageErrorf("%s needs REF and SOURCE", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages()
			if err != nil {
				return err
			}
			entry, err := store.Import(cmd.Context(), args[0], args[1])
			if err != nil {
				return imageError(err)
			}
			return showImage(cmd, "imported", entry)
		},
	}
}

func imageListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the images of the local store", Args: noArgs,
		Example: "  helmr image list\n  helmr image list --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := openImages()
			if err != nil {
				return err
			}
			entries, err := store.List()
			if err != nil {
				return err
			}
			if jsonWanted(cmd) {
				return printJSON(cmd.OutOrStdout(), map[string]any{"images": entries})
			}
			w := newText(cmd.OutOrStdout())
			if len(entries) == 0 {
				w.line("No images in %s. Make one with: helmr image base", store.Dir())
				return w.flush()
			}
			w.row("IMAGE", "FROM", "SIZE", "SINCE", "DIGEST")
			for _, e := range entries {
				w.row(image.Familiar(e.Ref), e.Origin, imageSize(e), e.Created.Local().Format("2006-01-02 15:04"), e.Digest[:min(19, len(e.Digest))])
			}
			return w.flush()
		},
	}
}

func imageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove REF", Short: "Remove an image from the local store", Args: oneArg("REF"),
		Example: "  helmr image remove node:24-bookworm-slim",
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages()
			if err != nil {
				return err
			}
			found, err := store.Remove(args[0])
			if err != nil {
				return imageError(err)
			}
			if !found {
				return hinted{fmt.Errorf("there is no image %s in the local store", args[0]), "`helmr image list` shows what there is"}
			}
			if jsonWanted(cmd) {
				return printJSON(cmd.OutOrStdout(), map[string]any{"removed": args[0]})
			}
			w := newText(cmd.OutOrStdout())
			w.line("removed %s", args[0])
			return w.flush()
		},
	}
}

func imageBaseCommand() *cobra.Command {
	var force bool
	command := &cobra.Command{
		Use:   "base",
		Short: "Make " + image.BaseRef + " without a container registry",
		Long: `Makes the image ` + image.BaseRef + ` in the local store, out of Debian packages (through the apt mirrors of this machine)
and the Node.js and npm of the npm registry. It does nothing when the image is there. It needs mmdebstrap and npm, and
takes a minute.`,
		Example: "  helmr image base\n  helmr image base --force",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := openImages()
			if err != nil {
				return err
			}
			entry, made, err := store.MakeBase(cmd.Context(), image.BaseOptions{Force: force, Progress: func(line string) {
				if !jsonWanted(cmd) {
					cmd.PrintErrln(line)
				}
			}})
			if err != nil {
				return imageError(err)
			}
			if !made {
				return showImage(cmd, "already there:", entry)
			}
			return showImage(cmd, "made", entry)
		},
	}
	command.Flags().BoolVar(&force, "force", false, "make it again, with the packages of today")
	return command
}

func imagePruneCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prune",
		Short: "Remove what builds have cached",
		Long: `Removes what the next builds make again by themselves: finished image archives, the layers that buildah keeps, and copies
of images from registries. Images that were imported or made here stay.`,
		Example: "  helmr image prune", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := image.CacheDir()
			if err != nil {
				return err
			}
			if err := image.Prune(cmd.Context(), dir); err != nil {
				return imageError(err)
			}
			if jsonWanted(cmd) {
				return printJSON(cmd.OutOrStdout(), map[string]any{"pruned": dir})
			}
			w := newText(cmd.OutOrStdout())
			w.line("removed the build caches in %s", dir)
			return w.flush()
		},
	}
}

func showImage(cmd *cobra.Command, what string, e image.Entry) error {
	if jsonWanted(cmd) {
		return printJSON(cmd.OutOrStdout(), e)
	}
	w := newText(cmd.OutOrStdout())
	w.line("%s %s (%s, %s)", what, image.Familiar(e.Ref), imageSize(e), e.Digest)
	return w.flush()
}

func imageSize(e image.Entry) string { return fmt.Sprintf("%.1f MiB", float64(e.Size)/(1<<20)) }

// imageError gives the sentence that is meant for people. What is not, such as a full disk, stays as it is.
func imageError(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Code != fault.Internal {
		return errors.New(f.Message)
	}
	return err
}
