package egress

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/egress/policy"
)

// defaultRefreshEvery is how often the host's addresses and routes are looked at.
const defaultRefreshEvery = 10 * time.Second

// Config says what a Gateway works with. Dir and Log are required.
type Config struct {
	// Dir holds the records; names of namespaces and links derive from its path.
	Dir string
	// Resolvers are asked in turn; empty reads /etc/resolv.conf anew for each question.
	Resolvers []netip.AddrPort
	// Blocked is denied under every policy, beside the host's own addresses and what is not public.
	Blocked []netip.Prefix
	// Business are the private ranges that policies may open.
	Business []netip.Prefix
	// Roots verify protected origins; nil is the host's.
	Roots *x509.CertPool
	// HostNS is the network namespace that traffic leaves through; nil is the process's own.
	HostNS *os.File
	Log    *slog.Logger

	// refreshEvery is defaultRefreshEvery where it is 0; tests shorten it.
	refreshEvery time.Duration
}

// Network is what a sandbox needs of a Computer's network.
type Network struct {
	// NetNS is the path of the namespace; "" for a Computer without any network.
	NetNS string
	// ResolvConf is the path of the /etc/resolv.conf to show inside; "" without a network.
	ResolvConf string
}

// Gateway is the outbound network of the Computers of one Worker. Its methods may be called concurrently.
type Gateway struct {
	cfg   Config
	names struct{ gateway, uplink string }
	mtu   int
	// hostInode names the host's network namespace.
	hostInode uint64

	ns           *os.File
	inner, outer *netlink.Handle // in the gateway's namespace and in the host's
	rules        *rules
	resolver     *resolver
	stop         context.CancelFunc
	running      sync.WaitGroup
	closers      []func() error

	// changing is held while namespaces, links and rules are changed.
	changing sync.Mutex
	// all below are guarded by changing
	lastSlot int
	told     []netip.Prefix // by Deny
	toldKept bool           // for another start
	enforced []netip.Prefix // what of blocked the rules have

	mu sync.RWMutex
	// all below are guarded by mu
	computers map[string]*computer
	bySource  map[netip.Addr]*computer
	own       []netip.Prefix // the host's addresses
	blocked   []netip.Prefix // Config's, the host's and what was told
}

// Open takes up the gateway of a folder with the Computers that it has, or makes one. It fails on a host that cannot
// enforce policies.
func Open(ctx context.Context, cfg Config) (g *Gateway, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("network of Computers: %w", err)
		}
	}()
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o711); err != nil {
		return nil, err
	}
	if cfg.Dir, err = filepath.EvalSymlinks(cfg.Dir); err != nil {
		return nil, err
	}
	if cfg.refreshEvery == 0 {
		cfg.refreshEvery = defaultRefreshEvery
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	g = &Gateway{cfg: cfg, stop: stop, computers: map[string]*computer{}, bySource: map[netip.Addr]*computer{}}
	sum := sha256.Sum256([]byte(cfg.Dir))
	g.names.gateway, g.names.uplink = fmt.Sprintf("helmr-%x", sum[:4]), fmt.Sprintf("%s%x", uplinkPrefix, sum[:4])
	if err := g.open(run); err != nil {
		if len(g.computers) == 0 {
			err = errors.Join(err, deleteNamespace(g.names.gateway))
		}
		return nil, errors.Join(err, g.shut())
	}
	return g, nil
}

func (g *Gateway) open(ctx context.Context) error {
	if err := replaceFile(g.resolvConf(), []byte("nameserver "+resolverAddress.String()+"\n")); err != nil {
		return err
	}
	if err := os.Chmod(g.resolvConf(), 0o644); err != nil {
		return err
	}
	var err error
	if g.outer, err = handle(g.cfg.HostNS); err != nil {
		return err
	}
	err = inside(g.cfg.HostNS, func() error {
		var st unix.Stat_t
		err := unix.Stat("/proc/thread-self/ns/net", &st)
		g.hostInode = st.Ino
		return err
	})
	if err != nil {
		return fmt.Errorf("look at the host's network namespace: %w", err)
	}
	if g.ns, err = openNamespace(g.names.gateway); errors.Is(err, fs.ErrNotExist) {
		g.ns, err = makeNamespace(g.names.gateway)
	}
	if err != nil {
		return err
	}
	if g.inner, err = handle(g.ns); err != nil {
		return err
	}
	if err := g.readRecords(); err != nil {
		return err
	}
	own, devices, mtu, err := g.addresses()
	if err != nil {
		return err
	}
	g.mtu = mtu
	if err := g.readTold(); err != nil {
		return err
	}
	g.own, g.blocked = own, slices.Concat(g.cfg.Blocked, own, g.told)
	g.rules = newRules(g.ns)
	all := g.sorted()
	// Rules come first: before them nothing is forwarded, because a new namespace has no links.
	if err := g.rules.install(all, mandatory(g.blocked, nil)); err != nil {
		return err
	}
	g.enforced = g.blocked
	if err := g.prepareGateway(); err != nil {
		return err
	}
	if g.rules.notes {
		err = g.watchPackets()
	} else {
		err = errors.New("the kernel has no nft_log or nfnetlink_log")
	}
	if err != nil {
		g.cfg.Log.Warn("packets that are refused will not be listed as attempts of their Computers", "error", err)
	}
	if err := g.sweep(); err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(c *computer) bool { return c.policy.Open() }) {
		if err := g.uplink(devices); err != nil {
			return err
		}
	}
	g.resolver = newResolver(g)
	if err := g.listen(); err != nil {
		return err
	}
	g.running.Go(func() { g.watchHost(ctx) })
	return nil
}

func (g *Gateway) resolvConf() string { return filepath.Join(g.cfg.Dir, "resolv.conf") }

// sweep removes namespaces and links that no record names: what a start that was cut off left.
func (g *Gateway) sweep() error {
	names, err := namespacesWith(g.names.gateway + "-")
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, c := range g.computers {
		known[c.namespace], known[c.link()] = true, true
	}
	for _, name := range names {
		if !known[name] {
			if err := deleteNamespace(name); err != nil {
				return err
			}
		}
	}
	links, err := g.inner.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if name := l.Attrs().Name; strings.HasPrefix(name, "c") && !known[name] {
			if err := g.disconnect(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Add gives a Computer a network under a policy. protected are the origins, in the form of bindings, that are reached
// through Protect alone. A Computer that has a network is refused: Remove it first. On error nothing of it is left.
func (g *Gateway) Add(id string, p policy.Policy, protected ...string) (Network, error) {
	if p.BlockAll {
		return Network{}, nil // not even a namespace: the sandbox has no network at all
	}
	g.changing.Lock()
	defer g.changing.Unlock()
	g.mu.RLock()
	_, exists := g.computers[id]
	g.mu.RUnlock()
	if exists {
		return Network{}, fmt.Errorf("network of computer %s: it has one already", id)
	}
	slot, err := g.freeSlot()
	if err != nil {
		return Network{}, fmt.Errorf("network of computer %s: %w", id, err)
	}
	c := g.newComputer(record{ID: id, Slot: slot, Policy: p, Protected: protected})
	if err := g.add(c); err != nil {
		return Network{}, errors.Join(fmt.Errorf("network of computer %s: %w", id, err), g.remove(c))
	}
	return Network{NetNS: namespacePath(c.namespace), ResolvConf: g.resolvConf()}, nil
}

func (g *Gateway) add(c *computer) error {
	if err := g.writeRecord(c); err != nil {
		return err
	}
	g.mu.Lock()
	g.computers[c.ID], g.bySource[c.address()] = c, c
	g.mu.Unlock()
	if c.policy.Open() {
		_, devices, _, err := g.addresses()
		if err != nil {
			return err
		}
		if err := g.uplink(devices); err != nil {
			return err
		}
	}
	ns, err := makeNamespace(c.namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := g.rules.add(c); err != nil {
		return err
	}
	return g.connect(c, ns)
}

// Remove takes a Computer's network away with everything of it. One that has none is no error. The namespace ends
// with the sandbox in it: remove that first.
func (g *Gateway) Remove(id string) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.mu.RLock()
	c := g.computers[id]
	g.mu.RUnlock()
	if c == nil {
		return nil
	}
	if err := g.remove(c); err != nil {
		return fmt.Errorf("network of computer %s: %w", id, err)
	}
	return nil
}

func (g *Gateway) remove(c *computer) error {
	c.end() // its connections through the proxies
	if err := g.rules.remove(c); err != nil {
		return err
	}
	if err := g.disconnect(c.link()); err != nil {
		return err
	}
	if err := g.forget(c.address()); err != nil {
		return err
	}
	if err := deleteNamespace(c.namespace); err != nil {
		return err
	}
	g.mu.Lock()
	delete(g.computers, c.ID)
	delete(g.bySource, c.address())
	g.mu.Unlock()
	return g.deleteRecord(c)
}

// List gives the ids of all Computers that have a network, also of those added by an earlier process.
func (g *Gateway) List() []string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	ids := make([]string, 0, len(g.computers))
	for id := range g.computers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Intact tells whether the network of a Computer is all there. It is not after the gateway's namespace was removed by
// somebody else: the sandbox then has no network any more and has to start anew.
func (g *Gateway) Intact(id string) bool {
	g.mu.RLock()
	c := g.computers[id]
	g.mu.RUnlock()
	if c == nil {
		return false
	}
	_, err := g.inner.LinkByName(c.link())
	return err == nil
}

// Close stops resolver and proxies. Namespaces and rules stay for as long as there is a Computer; without one
// everything is removed.
func (g *Gateway) Close() error {
	err := g.end() // first, and without the lock: what it waits for may be waiting for the lock
	g.changing.Lock()
	defer g.changing.Unlock()
	if len(g.List()) == 0 {
		err = errors.Join(err, g.restoreHost(), deleteNamespace(g.names.gateway))
	}
	return errors.Join(err, g.release())
}

// shut ends this Gateway as the end of its process would: namespaces, links and rules stay.
func (g *Gateway) shut() error { return errors.Join(g.end(), g.release()) }

// end ends everything that runs for the Gateway.
func (g *Gateway) end() error {
	g.stop()
	var errs []error
	for _, c := range g.closers {
		if err := c(); !errors.Is(err, net.ErrClosed) { // some are closed by what they serve
			errs = append(errs, err)
		}
	}
	g.running.Wait()
	return errors.Join(errs...)
}

// release ends the connections of Computers and gives back what reaches into the namespaces.
func (g *Gateway) release() error {
	for _, c := range g.computers {
		c.end()
	}
	for _, h := range []*netlink.Handle{g.inner, g.outer} {
		if h != nil {
			h.Close()
		}
	}
	if g.ns == nil {
		return nil
	}
	return g.ns.Close()
}

// watchHost keeps the denied destinations and the uplink in step with the host's addresses and routes.
func (g *Gateway) watchHost(ctx context.Context) {
	tick := time.NewTicker(g.cfg.refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := g.refresh(); err != nil {
			g.cfg.Log.Error("cannot follow the host's addresses", "error", err)
		}
	}
}

func (g *Gateway) refresh() error {
	g.changing.Lock()
	defer g.changing.Unlock()
	return g.refreshLocked()
}

// refreshLocked is refresh for who holds changing.
func (g *Gateway) refreshLocked() error {
	own, devices, _, err := g.addresses()
	if err != nil {
		return err
	}
	blocked := slices.Concat(g.cfg.Blocked, own, g.told)
	g.mu.Lock()
	g.own, g.blocked = own, blocked
	open := false
	for _, c := range g.computers {
		open = open || c.policy.Open()
	}
	g.mu.Unlock()
	if !slices.Equal(blocked, g.enforced) {
		if err := g.rules.deny(mandatory(blocked, nil)); err != nil {
			return err
		}
		g.enforced = blocked
	}
	if open {
		return g.uplink(devices) // also when somebody emptied the host's rules
	}
	return nil
}

// installation is what the host adds to every policy.
func (g *Gateway) installation() policy.Installation {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return policy.Installation{Blocked: g.blocked, Business: g.cfg.Business}
}

func (g *Gateway) at(source netip.Addr) *computer {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.bySource[source.Unmap()]
}

func (g *Gateway) sorted() []*computer {
	var all []*computer
	for _, c := range g.computers {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *computer) int { return cmp.Compare(a.Slot, b.Slot) })
	return all
}

// freeSlot gives the next unused slot: one that was just left is the last to be used again.
func (g *Gateway) freeSlot() (int, error) {
	used := map[int]bool{}
	g.mu.RLock()
	for _, c := range g.computers {
		used[c.Slot] = true
	}
	g.mu.RUnlock()
	for range maxSlots {
		g.lastSlot = g.lastSlot%maxSlots + 1
		if !used[g.lastSlot] {
			return g.lastSlot, nil
		}
	}
	return 0, errors.New("no address is left")
}

// replaceFile writes a file in one step.
func replaceFile(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// record is what is remembered of a Computer's network across processes. It is written before anything of it exists and
// deleted last.
type record struct {
	ID     string        `json:"id"`
	Slot   int           `json:"slot"`
	Policy policy.Policy `json:"policy"`
	// Protected are origins that are never reached but through the Computer's guard.
	Protected []string `json:"protected,omitempty"`
}

func (g *Gateway) recordPath(id string) string {
	return filepath.Join(g.cfg.Dir, "computers", hashed(id)+".json")
}

func hashed(id string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(id)))[:16] }

func (g *Gateway) writeRecord(c *computer) error {
	b, err := json.Marshal(c.record)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return replaceFile(g.recordPath(c.ID), b)
}

func (g *Gateway) deleteRecord(c *computer) error {
	if err := os.Remove(g.recordPath(c.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete record: %w", err)
	}
	return nil
}

func (g *Gateway) readRecords() error {
	dir := filepath.Join(g.cfg.Dir, "computers")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		var rec record
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(b, &rec)
		}
		if err == nil && (rec.Slot < 1 || rec.Slot > maxSlots || rec.ID == "") {
			err = errors.New("it is damaged")
		}
		if err != nil {
			return fmt.Errorf("read record %s: %w", e.Name(), err)
		}
		c := g.newComputer(rec)
		g.computers[c.ID], g.bySource[c.address()] = c, c
		g.lastSlot = max(g.lastSlot, c.Slot)
	}
	return nil
}
