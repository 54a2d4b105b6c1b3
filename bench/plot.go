package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	plotWidth  = 11 * vg.Inch
	plotHeight = 4 * vg.Inch
	barWidth   = 14 // points
)

// The colours of the kinds of cells, chosen to be told apart by the colour-blind.
var kindColors = map[string]color.Color{
	kindDirect:   color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	kindRelay:    color.RGBA{R: 0xf0, G: 0xe4, B: 0x42, A: 0xff},
	kindBulk:     color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	kindService:  color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	kindBatching: color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	kindEcho:     color.RGBA{R: 0x99, G: 0x99, B: 0x99, A: 0xff},
	kindPostgres: color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
	kindRedis:    color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
}

var kindLabels = map[string]string{
	kindDirect: "direct upserts", kindRelay: "bare gRPC service", kindBulk: "bulk ceiling", kindService: "JobOnce", kindBatching: "JobOnce, batching client",
	kindEcho: "bare gRPC echo", kindPostgres: "PostgreSQL", kindRedis: "Redis",
}

// drawPlot draws the rates against the number of callers: those on MongoDB, and those on one machine's disk. The file's
// name says whether it is an SVG or a PNG.
func drawPlot(r *results, file string) error {
	format := strings.TrimPrefix(filepath.Ext(file), ".")
	canvas, err := draw.NewFormattedCanvas(plotWidth, plotHeight, format)
	if err != nil {
		return err
	}
	charts := [][]*plot.Plot{{
		chart(r, "On MongoDB", mongodb, []string{kindDirect, kindService, kindBatching, kindBulk}),
		chart(r, "On a local disk", embedded, []string{kindEcho, kindPostgres, kindRedis, kindService, kindBatching}),
	}}
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Inch / 4, PadLeft: vg.Inch / 10, PadRight: vg.Inch / 10}
	for i, c := range plot.Align(charts, tiles, draw.New(canvas))[0] {
		charts[0][i].Draw(c)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func chart(r *results, title string, s store, kinds []string) *plot.Plot {
	callers := []int{1, 16, 64, 256}
	p := plot.New()
	p.Title.Text = title + ", new jobs of 1 KiB"
	p.X.Label.Text = "callers"
	p.Y.Label.Text = "deliveries a second (median)"
	p.Y.Min = 0
	p.Y.Tick.Marker = plot.TickerFunc(wholeTicks)
	p.Legend.Top, p.Legend.Left = true, true
	var names []string
	for _, n := range callers {
		names = append(names, fmt.Sprint(n))
	}
	p.NominalX(names...)
	for i, kind := range kinds {
		heights := make(plotter.Values, len(callers))
		for j, n := range callers {
			if v := r.median(fmt.Sprintf("%s.%d.%s", s, n, kind), rate); !math.IsNaN(v) {
				heights[j] = v
			}
		}
		// It fails only for a value that is no number, or for none.
		bars, err := plotter.NewBarChart(heights, vg.Points(barWidth))
		if err != nil {
			continue
		}
		bars.Color = kindColors[kind]
		bars.LineStyle.Width = 0
		bars.Offset = vg.Points(barWidth * (float64(i) - float64(len(kinds)-1)/2))
		p.Add(bars)
		p.Legend.Add(kindLabels[kind], bars)
	}
	p.Y.Max *= 1.35 // room for the legend
	return p
}

// wholeTicks are four to ten ticks at round whole numbers, all with a label.
func wholeTicks(least, most float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(max(most-least, 10)/4)))
	for _, factor := range []float64{5, 2} {
		if (most-least)/(step*factor) >= 4 {
			step *= factor
			break
		}
	}
	var ticks []plot.Tick
	for v := math.Ceil(least/step) * step; v <= most; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%.0f", v)})
	}
	return ticks
}
