// Package blob keeps immutable objects under keys: bundle objects, chunks and manifests of Saves. A Store is a folder
// (file:PATH, written by this package) or an S3-compatible bucket (s3://BUCKET, over gocloud.dev/blob). It knows nothing
// of what an object means and never reads the database.
//
// Keys are "objects/<sha256>", "chunks/<environment>/<reference>" and "manifests/<environment>/<name>"; each is written
// once and always with the same content. An object appears under its key as a whole or not at all, and once a write has returned, the object
// survives a crash of the process and of the machine.
//
// A folder is written by hand rather than through gocloud's fileblob, because that driver neither syncs a file nor its
// folder before it answers, and puts an attribute file beside each object. Here: temporary file, fsync, rename, fsync
// of the folder.
package blob
