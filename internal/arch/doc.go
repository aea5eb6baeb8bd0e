// Package arch holds helmr's architecture as tests: who may import whom and why, where SQL stands and who owns which
// table, how large things may grow, and what documents must name. It is not part of the program; nothing imports it.
// When a test here fails, change the code; change the table only with a reason that its next reader will accept.
package arch
