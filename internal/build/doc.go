// Package build is what `helmr init` and `helmr build` do: it writes a starter project, and it turns a project folder
// into a deployment bundle. Run goes through the steps of Steps in order, in a private temporary folder that never
// outlives it; the bundle appears whole, at the end, or not at all.
//
// It runs code of the project on the machine of its author, as that author, and nothing of it on a server. It uploads
// nothing and knows no server; what a bundle is, and how hostile ones are read, is in package bundle.
package build
