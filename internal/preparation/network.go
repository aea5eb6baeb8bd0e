package preparation

import (
	"context"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// forgetNetworks removes what preparations tried on their networks once their logs are gone, some at a time: nobody reads it
// any more.
func forgetNetworks(tx *db.Tx) error {
	computers, err := tx.Column(sqlTried)
	if err != nil {
		return fmt.Errorf("find networks of expired logs: %w", err)
	}
	for _, computerID := range computers {
		if err := computer.ForgetNetwork(tx, computerID); err != nil {
			return err
		}
	}
	return nil
}

// Network gives what the attempts of a preparation tried on their networks, latest first. It is kept as long as the log. Errors:
// not_found, command_result_expired.
func (s *Service) Network(ctx context.Context, environmentID, preparationID string) (api.ComputerNetwork, error) {
	var out api.ComputerNetwork
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		if _, err := get(tx, environmentID, preparationID); err != nil {
			return err
		}
		var computers []string
		gone := false
		err := tx.Query(func(sc func(...any) error) error {
			var id string
			var expired *int64
			err := sc(&id, &expired)
			computers, gone = append(computers, id), gone || expired != nil
			return err
		}, sqlComputers, preparationID)
		if err != nil {
			return fmt.Errorf("read attempts: %w", err)
		}
		if gone {
			return fault.New(fault.CommandResultExpired, "what preparation %s tried on its network was removed with its log", preparationID)
		}
		out, err = computer.NetworkOf(tx, computers...)
		return err
	})
	return out, err
}
