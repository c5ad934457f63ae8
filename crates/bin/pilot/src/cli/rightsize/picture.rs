//! Durations and bills by size as SVG: one panel for each setting, like Figures 10 and 11 of the paper.

use std::fmt::Write as _;

use pilot_meter::rightsize::{Setting, Sized};

/// The picture of all settings, one below the other.
pub(super) fn draw(settings: &[Setting]) -> String {
    let height = PANEL * settings.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (at, setting) in settings.iter().enumerate() {
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">", PANEL * at as f64);
        panel(&mut svg, setting);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where values are in a panel.
struct Scale {
    /// First and last CPU share.
    cpu: (f64, f64),
    /// Logarithms of the shortest and the longest time.
    time: (f64, f64),
    /// The highest bill.
    cost: f64,
}

impl Scale {
    fn of(sizes: &[Sized]) -> Option<Self> {
        let (first, last) = (sizes.first()?, sizes.last()?);
        let times = || {
            let both = sizes
                .iter()
                .flat_map(|size| [size.duration_us, size.ideal_us]);
            both.map(|us| (us.max(1) as f64).ln())
        };
        let most = sizes.iter().filter_map(cost).fold(0.0, f64::max);
        Some(Self {
            cpu: (first.cpu_milli as f64, last.cpu_milli as f64),
            time: (
                times().fold(f64::INFINITY, f64::min) - 0.1,
                times().fold(0.0, f64::max) + 0.1,
            ),
            cost: most,
        })
    }

    fn x(&self, size: &Sized) -> f64 {
        let (from, to) = self.cpu;
        LEFT + (size.cpu_milli as f64 - from) / (to - from).max(1.0) * (RIGHT - LEFT)
    }

    fn y(&self, us: f64) -> f64 {
        let (least, most) = self.time;
        BOTTOM - (us.max(1.0).ln() - least) / (most - least) * (BOTTOM - TOP)
    }

    fn y_of_cost(&self, dollars: f64) -> f64 {
        BOTTOM - dollars / self.cost.max(f64::MIN_POSITIVE) * (BOTTOM - TOP)
    }
}

fn panel(svg: &mut String, setting: &Setting) {
    let sizes = &setting.sizes;
    let Some(scale) = Scale::of(sizes) else {
        return;
    };
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{}: period {} us, {} Hz</text>",
        escaped(&setting.name),
        setting.period_us,
        setting.tick_hz
    );
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}V{TOP}\" fill=\"none\" stroke=\"#888\"/>"
    );
    for us in (0..10).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power))) {
        let y = scale.y(us);
        if (TOP..=BOTTOM).contains(&y) {
            let label = if us < 1e6 {
                format!("{} ms", us / 1e3)
            } else {
                format!("{} s", us / 1e6)
            };
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#eee\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
    }
    let by_memory =
        sizes.first().map(|size| size.memory_mb) != sizes.last().map(|size| size.memory_mb);
    let every = (sizes.len() / LABELS).max(1);
    for size in sizes.iter().step_by(every) {
        let label = match by_memory {
            true => format!("{} MB", size.memory_mb),
            false => format!("{:.2}", size.cpu_milli as f64 / 1e3),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            scale.x(size),
            BOTTOM + 16.0
        );
    }
    line(
        svg,
        "#d33",
        "5 4",
        sizes
            .iter()
            .map(|size| (scale.x(size), scale.y(size.ideal_us as f64))),
    );
    line(
        svg,
        "#06c",
        "",
        sizes
            .iter()
            .map(|size| (scale.x(size), scale.y(size.duration_us as f64))),
    );
    let bills = sizes
        .iter()
        .filter_map(|size| Some((scale.x(size), scale.y_of_cost(cost(size)?))));
    line(svg, "#292", "2 2", bills);
    for size in sizes.iter().filter(|size| size.cheapest || size.enough) {
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\"/>",
            scale.x(size),
            scale.y(size.duration_us as f64),
            if size.cheapest { "#292" } else { "#06c" }
        );
    }
    let bills = match sizes.iter().any(|size| cost(size).is_some()) {
        true => format!(
            "; green: the bill, 0 to {:.2} dollars per million calls",
            scale.cost
        ),
        false => String::new(),
    };
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">blue: expected duration; red: ideal{bills}. Dots: cheapest (green), as fast as it gets (blue)</text>",
        BOTTOM + 34.0
    );
}

fn line(svg: &mut String, colour: &str, dashes: &str, points: impl Iterator<Item = (f64, f64)>) {
    let mut path = String::new();
    for (x, y) in points {
        let _ = write!(path, "{x:.1},{y:.1} ");
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-dasharray=\"{dashes}\"/>",
        path.trim_end()
    );
}

/// The bill, as near as a picture needs it.
fn cost(size: &Sized) -> Option<f64> {
    size.per_million.as_ref()?.parse().ok()
}

/// A name from a table may be a user's.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

const WIDTH: f64 = 760.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 240.0;
/// Labels of an axis.
const LABELS: usize = 10;

#[cfg(test)]
mod tests {
    use pilot_meter::quota::Scheduler;

    use super::*;

    #[test]
    fn a_picture_has_a_panel_for_each_setting_and_names_are_escaped() {
        let size = |cpu_milli, duration_us| Sized {
            cpu_milli,
            memory_mb: cpu_milli * 2,
            duration_us,
            ideal_us: duration_us + 10,
            per_million: Some("1.500000".to_owned()),
            step: true,
            cheapest: cpu_milli == 100,
            enough: cpu_milli == 1000,
        };
        let setting = |name: &str, sizes| Setting {
            id: "x".to_owned(),
            name: name.to_owned(),
            period_us: 20_000,
            tick_hz: 250,
            scheduler: Scheduler::Cfs,
            sizes,
        };
        let sizes = vec![size(100, 90_000), size(500, 20_000), size(1000, 10_000)];
        let svg = draw(&[
            setting("A < B & C", sizes),
            setting("one", vec![size(1000, 5)]),
        ]);
        assert_eq!(svg.matches("<g ").count(), 2);
        assert_eq!(svg.matches("</g>").count(), 2);
        assert!(svg.contains("A &lt; B &amp; C"), "{svg}");
        assert!(svg.contains(">10 ms<"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(draw(&[setting("none", Vec::new())]).ends_with("</svg>\n"));
    }
}
