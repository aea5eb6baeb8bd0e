// Package chunk keeps folders in a blob store, encrypted and so that only what changed is stored again: the content of
// Saves, captures and prepared images. It knows neither Computers nor gVisor, keeps no owners and times, and takes plain
// files and folders only. It decides nothing about what is kept or removed: whoever refers to a manifest does.
//
// A file is cut into pieces at pages whose content says so, not at fixed offsets, because gVisor writes memory and disk
// pages one after another: a page that is new in the middle shifts all that follow, and with fixed offsets the whole
// rest would be stored again. Cuts lie between 4 KiB pages. Long runs of zero bytes are pieces of their own that are
// only counted, never stored; holes of sparse files are not even read.
//
// A Store may begin while the folder is still being written, and take over what is remembered of an earlier state of it: a
// piece with the same fingerprint is not cut and named again. The manifest is the same as without.
//
// A Vault is all of that under one installation's key, a Space the part of one Environment, with keys of its own. A piece
// is "chunks/ENVIRONMENT/REFERENCE", compressed and then encrypted. Its reference is a keyed digest of its bytes: within
// an Environment equal pieces are one object, while nobody without the key can tell what a piece holds or whether two
// Environments hold the same. The manifest, which names every file with its pieces, is
// "manifests/ENVIRONMENT/RANDOM" and written last: if it is there, all of the folder is. It begins with the plain list of
// the references in it, so that a server without the key can tell what it needs.
//
// Everything is verified when it is read: an object that was changed, cut short or put in another's place is refused with
// ErrUnreadable.
package chunk
