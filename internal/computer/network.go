package computer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Bounds of what is kept of a Computer's network attempts.
const (
	maxAttempts    = 100
	maxAttemptText = 253 // bytes of a name
)

// What is kept of the installation's own addresses, which are denied to Computers.
const (
	// denyFor is how long one is denied after it was last seen: names have more addresses than one answer gives, and a
	// machine that is silent may still be there.
	denyFor = time.Hour
	// seeEvery is how often one is written down.
	seeEvery = time.Minute
	// maxOwned bounds the addresses of one Worker, and of servers, at a time; maxDenied what a Worker is told.
	maxOwned, maxDenied = 64, 1024
	servers             = "servers"
)

// DenyAddresses names what finds the addresses of this server, the database and the blob storage. Without it those of
// Workers alone are denied. It is called before Loops run.
func (s *Service) DenyAddresses(find func(context.Context) []netip.Addr) { s.findOwn = find }

// seeOwn writes down the addresses of this server and what it uses, and forgets old ones.
func (s *Service) seeOwn(ctx context.Context) (time.Duration, error) {
	var found []string
	if s.findOwn != nil {
		for _, a := range s.findOwn(ctx) {
			found = append(found, a.String())
		}
	}
	return 0, s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(sqlDeniedForget, db.Millis(s.now().Add(-denyFor))); err != nil {
			return fmt.Errorf("forget addresses: %w", err)
		}
		return s.see(tx, servers, found)
	})
}

// see writes down where an owner is, unless that was done lately. What is no address of a machine on an IPv4 network is
// passed over.
func (s *Service) see(tx *db.Tx, owner string, addresses []string) error {
	known, err := tx.Column(sqlDeniedOf, owner, db.Millis(s.now().Add(-seeEvery)))
	if err != nil {
		return fmt.Errorf("read addresses: %w", err)
	}
	// In one order, so that two servers do not wait for each other.
	for _, text := range slices.Sorted(slices.Values(addresses[:min(len(addresses), maxOwned)])) {
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err != nil || !a.Is4() || !a.IsGlobalUnicast() || slices.Contains(known, a.String()) {
			continue
		}
		if _, err := tx.Exec(sqlDeniedSee, owner, a.String(), db.Millis(s.now())); err != nil {
			return fmt.Errorf("write addresses: %w", err)
		}
	}
	return nil
}

// denied lists the addresses that Computers are kept from, those that were seen last if there are too many.
func (s *Service) denied(tx *db.Tx) ([]string, error) {
	list, err := tx.Column(sqlDenied, db.Millis(s.now().Add(-denyFor)), maxDenied)
	if err != nil {
		return nil, fmt.Errorf("read denied addresses: %w", err)
	}
	return list, nil
}

// ReportNetwork keeps what the Worker that holds a Computer says it tried on its network. A report is what the Worker
// remembers: what was reported before it restarted stays beside it, up to a bound. Error: lease_lost.
func (s *Service) ReportNetwork(ctx context.Context, req *workerpb.ReportNetworkRequest) error {
	reported := make([]api.NetworkAttempt, 0, maxAttempts)
	for _, a := range req.GetAttempts()[max(0, len(req.GetAttempts())-maxAttempts):] {
		reported = append(reported, attempt(a))
	}
	return s.db.Write(ctx, func(tx *db.Tx) error {
		r, err := LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if err != nil || r.Status != "available" && r.Purpose == ForUse {
			return err
		}
		kept, err := networkOf(tx, req.GetComputerId())
		if err != nil {
			return err
		}
		text, err := json.Marshal(mergeAttempts(kept, reported))
		if err != nil {
			return fmt.Errorf("encode network attempts: %w", err)
		}
		if _, err := tx.Exec(sqlNetworkSet, req.GetComputerId(), string(text), db.Millis(s.now())); err != nil {
			return fmt.Errorf("keep network attempts: %w", err)
		}
		return nil
	})
}

// attempt reads what a Worker reports. The name in it is the guest's.
func attempt(a *workerpb.NetworkAttempt) api.NetworkAttempt {
	out := api.NetworkAttempt{Kind: a.GetKind(), Name: strings.ToValidUTF8(a.GetName()[:min(len(a.GetName()), maxAttemptText)], "\uFFFD"),
		Outcome: "allowed", Reason: a.GetReason(), Count: a.GetCount(), FirstAt: api.At(a.GetFirstMs()), LastAt: api.At(a.GetLastMs())}
	if out.Reason != "" {
		out.Outcome = "refused"
	}
	if ip, err := netip.ParseAddr(a.GetAddress()); err == nil {
		out.Address = ip.String()
	}
	if p := a.GetPort(); p > 0 && p < 1<<16 {
		out.Port = int(p)
	}
	return out
}

// mergeAttempts puts what was reported in place of what was known of the same attempts, latest first.
func mergeAttempts(kept, reported []api.NetworkAttempt) []api.NetworkAttempt {
	type identity struct {
		kind, name, address, reason string
		port                        int
		first                       int64
	}
	of := func(a api.NetworkAttempt) identity {
		i := identity{kind: a.Kind, name: a.Name, reason: a.Reason, port: a.Port, first: a.FirstAt.UnixMilli()}
		if a.Name == "" {
			i.address = a.Address // a name's addresses change, and it is still the same
		}
		return i
	}
	again := make(map[identity]bool, len(reported))
	for _, a := range reported {
		again[of(a)] = true
	}
	all := slices.Clone(reported)
	for _, a := range kept {
		if !again[of(a)] {
			all = append(all, a)
		}
	}
	latestFirst(all)
	return all[:min(len(all), maxAttempts)]
}

func networkOf(tx *db.Tx, computerID string) ([]api.NetworkAttempt, error) {
	list := []api.NetworkAttempt{}
	var text string
	found, err := tx.Get([]any{&text}, sqlNetwork, computerID)
	if err == nil && found {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read network attempts: %w", err)
	}
	return list, nil
}

// NetworkOf gives what some Computers tried on their networks lately as one list, latest first.
func NetworkOf(tx *db.Tx, computerIDs ...string) (api.ComputerNetwork, error) {
	out := api.ComputerNetwork{Attempts: []api.NetworkAttempt{}}
	for _, computerID := range computerIDs {
		list, err := networkOf(tx, computerID)
		if err != nil {
			return out, err
		}
		out.Attempts = append(out.Attempts, list...)
	}
	latestFirst(out.Attempts)
	out.Attempts = out.Attempts[:min(len(out.Attempts), maxAttempts)]
	return out, nil
}

// ForgetNetwork removes what a Computer tried on its network.
func ForgetNetwork(tx *db.Tx, computerID string) error {
	if err := tx.Do(sqlNetworkDelete, computerID); err != nil {
		return fmt.Errorf("forget network attempts: %w", err)
	}
	return nil
}

func latestFirst(list []api.NetworkAttempt) {
	slices.SortStableFunc(list, func(a, b api.NetworkAttempt) int { return b.LastAt.Compare(a.LastAt.Time) })
}

// Network gives what a Computer tried on its network lately, latest first; computer_not_found without the Computer.
func (s *Service) Network(ctx context.Context, environmentID, computerID string) (api.ComputerNetwork, error) {
	var out api.ComputerNetwork
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		_, err := ResidencyOf(tx, environmentID, computerID)
		if err == nil {
			out, err = NetworkOf(tx, computerID)
		}
		return err
	})
	return out, err
}
