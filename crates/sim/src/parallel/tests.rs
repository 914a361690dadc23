//! What only the inside shows.

use super::*;
use scenario::ScenarioFile;

/// The most connections and transfers that there were places for, and how many transfers came.
fn places(jobs: u64) -> [usize; 3] {
    let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\nqueue = \"100pkt\"\nload = 0.4\n";
    let rest = "size = { law = \"exponential\", mean = \"20kB\" }\n[bond]\nscheduler = \"fluid\"\n";
    let text = format!("name = \"x\"\n{network}{network}[foreground]\nload = 0.6\njobs = {jobs}\n{rest}");
    let scenario = ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
    let Some(controller) = Controller::named("cubic") else { panic!("cubic is there") };
    let mut world = World::new(&scenario, scenario.parallel().unwrap(), 1, controller, Settings::default());
    assert_eq!(world.run(u64::MAX, &()), Ended::Well);
    let open = world.transfers.iter().flat_map(|transfer| transfer.conns).flatten().count();
    assert_eq!(open + world.free_conns.len(), world.conns.len(), "a place is free or taken");
    let came = outcome(&world, 1).sojourn_jobs.iter().sum::<u64>();
    [world.conns.len(), world.transfers.len(), came as usize]
}

#[test]
fn memory_is_that_of_the_transfers_under_way() {
    let (few, many) = (places(500), places(8000));
    assert!(many[2] > 12 * few[2] && many[2] > 15_000, "{many:?}");
    // Rare crowds are larger in a longer run, by the logarithm of its length.
    assert!(many[0] < 3 * few[0] && many[0] < 300 && many[1] < 200, "{few:?} {many:?}");
}

#[test]
fn what_is_under_way_to_a_connection_that_is_gone_finds_nobody() {
    let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\n";
    let text = format!("name = \"x\"\n{network}[[flow]]\nbytes = \"10kB\"\n[bond]\nscheduler = \"single\"\n");
    let scenario = ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
    let Some(controller) = Controller::named("reno") else { panic!("reno is there") };
    let mut world = World::new(&scenario, scenario.parallel().unwrap(), 1, controller, Settings::default());
    world.begin();
    let id = world.owners[0].id;
    assert_eq!(world.place_of(id), Some(0));
    world.transfers[0].ended = true;
    world.leave(0);
    assert_eq!((world.place_of(id), world.free_conns.len(), world.free_transfers.len()), (None, 1, 1));
    world.transfers[0].ended = false;
    world.connect(0, 0);
    assert_eq!((world.place_of(id), world.place_of(id + (1 << PLACE_BITS))), (None, Some(0)));
}
