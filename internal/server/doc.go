// Package server is helmr's HTTP face: authentication, permissions, strict requests, problem documents, event streams,
// long-polls, health, metrics and the OpenAPI document. It turns HTTP into calls of the rooms and their answers into
// HTTP. It decides nothing about Sessions, Turns or Computers, holds no state that outlives a request, and runs no SQL
// but the readiness probe.
//
// Everything begins in one route table (routes.go): method, path, permission, body limit, types and handler of each
// route. The mux, the OpenAPI document and the authorization test are all made from it, so a route cannot exist without
// a permission, a description and a test.
//
// Order of checks of a request, each answered by a problem document: path (404), method (405), credential (401),
// permission (403), identifiers in the path (400), query (400), body size (413), body (400), and then the room.
package server
