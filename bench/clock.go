package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTrips is how many echoes a clock is compared with; clockPatience bounds them.
const (
	clockTrips    = 300
	clockPatience = 30 * time.Second
)

// clockProgram answers each line with its clock, in ms since 1970.
const clockProgram = `process.stdin.on("data",()=>process.stdout.write((performance.timeOrigin+performance.now()).toFixed(4)+"\n"))`

// clockAhead gives how many ms the host's clock is ahead of the one inside a Computer. Each sandbox keeps a clock of its
// own by the machine's, and on a busy machine they differ by milliseconds: one sandbox says nothing about another. The
// host asks a Node program beside the Session; the fastest tenth of the echoes counts, half of each being the way back.
func (s *session) clockAhead(ctx context.Context) (ahead float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, clockPatience)
	defer cancel()
	state := filepath.Join(s.h.worker, "sandboxes", "runsc")
	cmd := exec.CommandContext(ctx, s.h.b.binary("runsc"), "--root="+state, "exec", s.computer, "node", "-e", clockProgram)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("compare clocks: %w", err)
	}
	defer func() {
		_ = in.Close()
		if wait := cmd.Wait(); err == nil && wait != nil {
			err = fmt.Errorf("compare clocks: %w", wait)
		}
	}()
	out := bufio.NewReader(pipe)
	var trips, aheads []float64
	for range clockTrips {
		sent := wall(time.Now())
		if _, err := in.Write([]byte("\n")); err != nil {
			return 0, fmt.Errorf("compare clocks: %w", err)
		}
		line, err := out.ReadString('\n')
		back := wall(time.Now())
		if err != nil {
			return 0, fmt.Errorf("compare clocks: %w", err)
		}
		inside, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return 0, err
		}
		trips, aheads = append(trips, back-sent), append(aheads, (sent+back)/2-inside)
	}
	limit := percentile(trips, 10)
	var fast []float64
	for i, t := range trips {
		if t <= limit {
			fast = append(fast, aheads[i])
		}
	}
	if len(fast) == 0 {
		return 0, errors.New("compare clocks: no echo came back")
	}
	return median(fast), nil
}
