use bufwise_link::{BitRate, Nanos, Path};
use crate::congestion::Algorithm;
use crate::neighbours::{Company, SharedPath, Shared};

fn shared(mbit: u64, rtt: u64, queue: &str, company: Company, seconds: u64) -> Shared {
    let rate = BitRate(mbit * 1_000_000);
    let rtt = Nanos::from_millis(rtt);
    let builder = Path::builder().rate(rate).rtt(rtt).queue(queue.parse().unwrap());
    SharedPath::new(&builder, rate, rtt, company, 1).run(seconds)
}

#[test]
fn grid() {
    let full = std::env::var_os("GRID").is_some();
    println!("mbit rtt queue others alg from  kernel sobas ratio all state rtt");
    let mut total = (0.0, 0.0, 0);
    for mbit in [10, 50] { for rtt in [10, 50, 100] { for queue in ["0.125bdp", "1bdp", "480ms"] { for others in [1,2,4] {
        if !full && (mbit, rtt, others) != (50, 50, 2) { continue; }
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] { 
        let mut sum = (0.0,0.0); let mut states = String::new();
        for from in [0, 1000, 1500, 4000] {
            let company = Company { others, from, until: 1_000_000, algorithm, sobas: false };
            let k = shared(mbit, rtt, queue, company, 25);
            let s = shared(mbit, rtt, queue, Company { sobas: true, ..company }, 25);
            sum.0 += k.bits_per_sec; sum.1 += s.bits_per_sec;
            states += &format!(" {:.2}/{:?}", s.bits_per_sec / k.bits_per_sec, s.state.unwrap());
        }
        println!("{mbit} {rtt} {queue} {others} {} {:.1} {:.1} {:.2} {states}", algorithm.name(), sum.0 / 4e6, sum.1 / 4e6, sum.1/sum.0);
        total.0 += (sum.1 / sum.0); total.1 += f64::from((sum.1 / sum.0) < 0.95); total.2 += 1;
    }}}}}
    println!("mean {} below {} of {}", total.0 / f64::from(total.2), total.1, total.2);
}

#[test]
fn one() {
    let a: Vec<String> = std::env::var("ONE").unwrap_or("50 50 480ms 2 4000 cubic".into()).split(' ').map(String::from).collect();
    let n = |i: usize| a[i].parse::<u64>().unwrap();
    let company = Company { others: n(3) as usize, from: n(4), until: 1_000_000, algorithm: if a[5] == "reno" { Algorithm::Reno } else { Algorithm::Cubic }, sobas: true };
    println!("{:?}", shared(n(0), n(1), &a[2], company, 25));
    println!("{:?}", shared(n(0), n(1), &a[2], Company { sobas: false, ..company }, 25));
}

#[test]
fn alone() {
    for mbit in [10, 50, 100] { for rtt in [10, 50, 100] { for queue in ["0.125bdp", "0.5bdp", "1bdp", "480ms"] { 
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] { 
            let company = Company { others: 0, from: 0, until: 1_000_000, algorithm, sobas: false };
            let k = shared(mbit, rtt, queue, company, 25);
            let s = shared(mbit, rtt, queue, Company { sobas: true, ..company }, 25);
            println!("{mbit} {rtt} {queue} {} {:.1} {:.1} {:.2} rtt {:.0} {:.0} {:?}", algorithm.name(), k.bits_per_sec / 1e6, s.bits_per_sec / 1e6, s.bits_per_sec/k.bits_per_sec, k.late_rtt_ms, s.late_rtt_ms, s.state.unwrap());
    }}}}
}
