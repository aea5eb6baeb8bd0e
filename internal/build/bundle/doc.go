// Package bundle is the format of a deployment bundle: its manifest, its objects and its program archive, with every
// limit and check that a server, a Worker and the CLI share. It reads hostile input. It compiles nothing, runs nothing
// and knows neither TypeScript nor HTTP; package build makes bundles, this package says what one is.
package bundle
