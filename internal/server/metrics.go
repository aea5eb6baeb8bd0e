package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the server's own figures.
type metrics struct {
	registry  *prometheus.Registry
	durations *prometheus.HistogramVec
	requests  *prometheus.CounterVec
	streams   prometheus.Gauge
}

func newMetrics(registry *prometheus.Registry) *metrics {
	if registry == nil {
		registry = prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m := &metrics{
		registry: registry,
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "helmr_http_request_duration_seconds",
			Help:    "Time to answer a request, by operation; streams and long-polls are left out.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"route", "method"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "helmr_http_requests_total", Help: "Answered requests, by operation and status.",
		}, []string{"route", "method", "status"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "helmr_http_streams", Help: "Open event streams and long-polls.",
		}),
	}
	registry.MustRegister(m.durations, m.requests, m.streams)
	return m
}

// observe counts one answered request. Methods that no route takes share one label, so that callers cannot make series.
func (m *metrics) observe(w *answer, method string, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(w.route, method, strconv.Itoa(w.status)).Inc()
	if !w.stream {
		m.durations.WithLabelValues(w.route, method).Observe(took.Seconds())
	}
}

// streaming counts an open stream or long-poll until the function it gives is called.
func (m *metrics) streaming() func() {
	m.streams.Inc()
	return m.streams.Dec
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
