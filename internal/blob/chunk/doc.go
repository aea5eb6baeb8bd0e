// Package chunk keeps folders in a blob store so that only what changed is stored again: the content of a Save. It
// knows neither Computers nor gVisor, keeps no owners and times, and takes plain files and folders only.
//
// A file is cut into pieces at pages whose content says so, not at fixed offsets, because gVisor writes memory and disk
// pages one after another: a page that is new in the middle shifts all that follow, and with fixed offsets the whole
// rest would be stored again. Cuts lie between 4 KiB pages. Long runs of zero bytes are pieces of their own that are
// only counted, never stored; holes of sparse files are not even read.
//
// A piece is "chunks/<SHA-256 of its bytes>", compressed; equal pieces are one object. The manifest, which names every
// file with its pieces, is "manifests/<SHA-256 of its JSON>" and is written last: if it is there, all of the folder is.
// Everything is verified against its digest when it is read.
package chunk
