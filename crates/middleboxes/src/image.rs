//! §IV-B of Wei et al.: downloads a picture of 1.5 MB, or a page of several, over a cellular link
//! through Split-TCP and through a TCP proxy that compresses pictures.

use crate::{
    conditions::{BulkDirection, CELLULAR, NetworkCondition, PathSpec},
    endpoints::{self, field},
    middlebox::Middlebox,
    run::MiddleboxRun,
    run_network::RunNetwork,
};
use anyhow::{Context as _, Result, bail, ensure};
use jpeg_encoder::{ColorType, Encoder};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testbed::SplitMix64;
use units::Bytes;

/// Downloads a picture, or a page of several, over a cellular link through Split-TCP and through a
/// TCP proxy that compresses pictures, and prints how long each took
#[derive(Debug, clap::Args)]
pub struct ImageDownload {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Number of downloads; nothing is cached between them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Size of each picture, within 2 %
    #[arg(long, default_value = "1500kB")]
    bytes: Bytes,
    /// Number of pictures; like a browser, the client fetches them over six connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pictures: u64,
    /// Writes the pictures into this directory, as sent and as received
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Connections of a browser to one server (HTTP/1.1).
const AT_A_TIME: usize = 6;
/// Row, middlebox, media types that the client accepts, and the paper's download time, s.
const ROWS: [(&str, Middlebox, &str, Option<f64>); 3] = [
    ("Split-TCP", Middlebox::Tandem("plain"), "image/jpeg", Some(109.0)),
    ("TCP proxy, a client that takes JPEG", Middlebox::Cache("plain"), "image/jpeg", Some(14.0)),
    ("TCP proxy, a client that takes WebP", Middlebox::Cache("plain"), "image/webp,image/jpeg", None),
];

impl ImageDownload {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it cannot do its work.
    pub fn run(&self) -> Result<()> {
        let times = self.download_times()?;
        let Some(split) = times.first() else { return Ok(()) };
        println!(
            "JPEG pictures: {}, of {} bytes together, over 128 kbit/s and 0.8 s, {} time(s) each.\n",
            self.pictures, split.bytes, self.runs
        );
        println!("| in the middle | bytes that came | download, s | printed, s | of Split-TCP's | printed |\n|---|---|---|---|---|---|");
        for row in &times {
            let (mean, deviation) = moments(&row.seconds);
            let spread = if self.runs > 1 { format!(" ± {deviation:.1}") } else { String::new() };
            let shown = |value: Option<String>| value.unwrap_or_else(|| "–".into());
            let ratio = row.printed_s.zip(split.printed_s).map(|(printed, split)| format!("{:.3}", printed / split));
            println!(
                "| {} | {} | {mean:.1}{spread} | {} | {:.3} | {} |",
                row.middle,
                row.bytes,
                shown(row.printed_s.map(|seconds| format!("{seconds:.0}"))),
                mean / moments(&split.seconds).0,
                shown(ratio)
            );
        }
        if self.runs > 1 {
            println!("\n± is the standard deviation, as the paper's (8 and 1 s of 40 downloads).");
        }
        Ok(())
    }

    /// Downloads through each middlebox; Split-TCP comes first.
    ///
    /// # Errors
    ///
    /// If the network cannot be built, which needs root, or a download fails.
    pub fn download_times(&self) -> Result<Vec<DownloadTimes>> {
        let tandem = testbed::resolve_program(&self.tandem);
        let bytes = usize::try_from(self.bytes.0).unwrap_or(usize::MAX);
        ensure!((10_000..=20_000_000).contains(&bytes), "--bytes {} is out of range: 10 kB to 20 MB", self.bytes);
        let pictures = (0..self.pictures).map(|number| photograph(self.seed + number, bytes)).collect::<Result<Vec<_>>>()?;
        if let Some(out) = &self.out {
            fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
            write(out, "as-it-is", &pictures)?;
        }
        let mut rows = Vec::new();
        for (what, middle, takes, printed) in ROWS {
            let (mut seconds, mut came) = (Vec::new(), Vec::new());
            for _ in 0..self.runs {
                let (bodies, time) = self.download(middle, takes, &tandem, &pictures).with_context(|| what)?;
                seconds.push(time.as_secs_f64());
                came = bodies;
            }
            if let Some(out) = &self.out {
                write(out, what, &came)?;
            }
            // The paper downloads a single picture.
            let printed_s = printed.filter(|_| self.pictures == 1);
            rows.push(DownloadTimes { middle: what, bytes: came.iter().map(Vec::len).sum(), seconds, printed_s });
        }
        Ok(rows)
    }

    /// Fetches the pictures through a middlebox with an empty cache. Returns them, and the time
    /// from the first connect to the last byte.
    fn download(&self, middle: Middlebox, takes: &str, tandem: &Path, pictures: &[Vec<u8>]) -> Result<(Vec<Vec<u8>>, Duration)> {
        if let Some(why) = middle.missing_requirement(tandem) {
            bail!("{}: {why}", middle.name());
        }
        let path = PathSpec { bytes: pictures.iter().map(|picture| picture.len() as u64).sum(), ..CELLULAR };
        let network = RunNetwork::build(&MiddleboxRun {
            number: 0,
            middle,
            direction: BulkDirection::Down,
            condition: NetworkCondition::Plain,
            seed: self.seed,
            path,
        })?;
        let _server = endpoints::HttpServer::start_with(
            network.server(),
            network.server_address(),
            "Content-Type: image/jpeg\r\n",
            pictures.to_vec(),
        )?;
        let _running = middle.start(&network, tandem, &path)?;
        let (next, came, begun) = (AtomicUsize::new(0), Mutex::new(vec![Vec::new(); pictures.len()]), Instant::now());
        let fetch_some = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Relaxed);
                let Some(picture) = pictures.get(number) else { return Ok(()) };
                let answer = endpoints::fetch(network.client(), middle.access(&network), number, &format!("Accept: {takes}\r\n"))?;
                check(&answer, picture, middle)?;
                came.lock().expect("no thread panics")[number] = answer.body;
            }
        };
        thread::scope(|scope| {
            let fetching: Vec<_> = (0..AT_A_TIME.min(pictures.len())).map(|_| scope.spawn(fetch_some)).collect();
            fetching.into_iter().try_for_each(|one| one.join().expect("it returns its errors"))
        })?;
        Ok((came.into_inner().expect("no thread panics"), begun.elapsed()))
    }
}

/// Downloads of the pictures through one middlebox.
#[derive(Debug, Clone)]
pub struct DownloadTimes {
    /// What is in the middle, and what the client accepts.
    pub middle: &'static str,
    /// Bytes that came to the client, without headers.
    pub bytes: usize,
    /// Time from the first connect to the last byte, s: one for each run.
    pub seconds: Vec<f64>,
    /// The printed time, s.
    pub printed_s: Option<f64>,
}

/// Checks that an answer is a complete picture, and smaller than the original if the middlebox
/// compresses.
fn check(answer: &endpoints::HttpMessage, picture: &[u8], middle: Middlebox) -> Result<()> {
    let (kind, body) = (field(&answer.head, "content-type").unwrap_or_default(), &answer.body);
    let whole = match kind {
        "image/jpeg" => body.starts_with(&[0xff, 0xd8]) && body.ends_with(&[0xff, 0xd9]),
        "image/webp" => body.starts_with(b"RIFF") && body.get(8..12) == Some(b"WEBP"),
        _ => false,
    };
    ensure!(whole, "received {} bytes of type {kind:?}, which are no complete picture", body.len());
    match middle {
        Middlebox::Cache(_) => ensure!(body.len() < picture.len(), "the picture was not made smaller"),
        _ => ensure!(body == picture, "the picture differs from what was sent"),
    }
    Ok(())
}

fn write(out: &Path, what: &str, pictures: &[Vec<u8>]) -> Result<()> {
    for (number, picture) in pictures.iter().enumerate() {
        let kind = if picture.starts_with(b"RIFF") { "webp" } else { "jpg" };
        let number = if pictures.len() > 1 { format!("-{}", number + 1) } else { String::new() };
        let path = out.join(format!("{}{number}.{kind}", what.replace([' ', ','], "-")));
        fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Mean and standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

/// A JPEG of quality 92 and about this size that resembles a photograph: noise on every scale,
/// weaker on finer ones, with colour on coarse scales only.
fn photograph(seed: u64, bytes: usize) -> Result<Vec<u8>> {
    // Such a picture takes about a fifth of a byte per pixel.
    let mut side = (bytes as f64 * 5.0).sqrt();
    for _ in 0..8 {
        let made = drawn(seed, (side as u16).max(16))?;
        let off = made.len() as f64 / bytes as f64;
        if (0.98..1.02).contains(&off) {
            return Ok(made);
        }
        side = (side / off.sqrt()).clamp(16.0, 12_000.0);
    }
    bail!("no picture of {bytes} bytes could be drawn")
}

/// Coarsest scale of a picture, and finest scale of its luminance and of each chrominance, pixels.
const COARSEST: usize = 512;
const FINEST: [usize; 3] = [2, 32, 32];

fn drawn(seed: u64, side: u16) -> Result<Vec<u8>> {
    let width = usize::from(side);
    let mut planes = Vec::new();
    for (plane, finest) in FINEST.into_iter().enumerate() {
        let mut values = vec![128.0f32; width * width];
        let mut scale = COARSEST;
        while scale >= finest {
            let mut random = SplitMix64::new(seed ^ (plane as u64) << 32 ^ scale as u64);
            add_noise(&mut values, width, scale, 50.0 * (scale as f32 / COARSEST as f32).sqrt(), &mut random);
            scale /= 2;
        }
        planes.push(values);
    }
    let pixels: Vec<u8> =
        (0..width * width).flat_map(|at| [&planes[0], &planes[1], &planes[2]].map(|plane| plane[at].clamp(0.0, 255.0) as u8)).collect();
    let mut made = Vec::new();
    Encoder::new(&mut made, 92).encode(&pixels, side, side, ColorType::Ycbcr).context("cannot draw a picture")?;
    Ok(made)
}

/// Adds smooth noise: random heights up to `strength`, `scale` pixels apart, with smooth slopes
/// between them.
fn add_noise(values: &mut [f32], width: usize, scale: usize, strength: f32, random: &mut SplitMix64) {
    let across = width / scale + 2;
    let heights: Vec<f32> = (0..across * across).map(|_| (random.uniform(0, 2000) as f32 / 1000.0 - 1.0) * strength).collect();
    let slope = |at: usize| {
        let part = (at % scale) as f32 / scale as f32;
        part * part * (3.0 - 2.0 * part)
    };
    for (y, row) in values.chunks_mut(width).enumerate() {
        let (above, down) = (y / scale * across, slope(y));
        for (x, value) in row.iter_mut().enumerate() {
            let (left, right) = (above + x / scale, slope(x));
            let mix = |at: usize| heights[at] + (heights[at + 1] - heights[at]) * right;
            *value += mix(left) + (mix(left + across) - mix(left)) * down;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_size_that_is_asked_for_and_is_the_same_again() {
        let picture = photograph(3, 200_000).unwrap();
        assert!((196_000..=204_000).contains(&picture.len()), "{}", picture.len());
        assert_eq!(picture, photograph(3, 200_000).unwrap());
        assert_ne!(picture, photograph(4, 200_000).unwrap());
    }

    #[test]
    fn moments_are_those_of_a_sample() {
        assert_eq!(moments(&[1.0, 3.0]), (2.0, 2.0f64.sqrt()));
        assert_eq!(moments(&[5.0]), (5.0, 0.0));
    }
}
