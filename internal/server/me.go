package server

import (
	"encoding/json"
	"net/http"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
)

// me tells a caller what its credential is and may do. Any valid credential may ask.
func (s *Server) me(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*answer)
	bearer, err := bearerOf(r)
	var who access.Principal
	if err == nil {
		who, err = s.authenticate(r, access.IsOwnerToken(bearer))
	}
	if err == nil {
		_, err = parseQuery(r.URL.RawQuery, nil)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	me := api.Me{Actor: who.Actor, OrganizationID: who.OrganizationID, ProjectID: who.ProjectID, EnvironmentID: who.EnvironmentID, Permissions: []string{}}
	for _, p := range access.Permissions {
		if who.Can(p.Name) {
			me.Permissions = append(me.Permissions, p.Name)
		}
	}
	body, err := json.Marshal(me)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.send(http.StatusOK, "application/json", body)
}
