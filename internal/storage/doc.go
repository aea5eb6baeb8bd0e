// Package storage is the room of what Workers keep in blob storage: which pieces and manifests an Environment may rely on,
// and the removal of those that nothing needs. It knows names only. What a manifest is kept for, the other rooms say
// (Roots); what is in one, only Workers can read.
//
// A piece can be found and relied on by a Worker at the very moment at which a server finds that nothing needs it, and a
// removal that was sent may arrive at any later time. So names are never brought back to life:
//
//	stored ----> published    Publish, if none of its names is retired; its manifest is a root from then on
//	stored ----> retired      the collector, if no root needs it at that moment
//	published -> retired      the same, after the last root that needs it is gone
//	retired ---> removed      at any time after the retirement is committed, by anyone, any number of times
//
// Publish and retirement lock the Environment's row, so one of the two comes first. If the publication does, the retirement
// sees its manifest among the roots. If the retirement does, the publication is refused with the names, and the Worker stores
// what it still has under the next ones. Nothing depends on clocks, leases or on who still runs; the age below which objects are
// left alone (Grace) only saves Workers from storing a thing twice.
//
// Tables owned: storage, retired_objects.
package storage
