//! One stage among several users of a directory. Processes of their own are in `tests/python/stages/test_stage.py`.

use std::thread;

use super::*;

#[test]
fn the_first_writes_and_the_others_open() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[700, 50]);
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let root = folder.path().join("stages");
    let wrote = |_| {
        let progress = Arc::new(Progress::default());
        let stage = block_on(Stage::ensure(&plan, &root, 2, &progress)).unwrap();
        assert_holds(&stage, &plan);
        progress.report().splits > 0
    };
    let writers = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|index| scope.spawn(move || wrote(index))).collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
    });
    assert_eq!(writers, 1);
    let stage = ensure(&plan, &root).unwrap();
    assert_eq!(stage.path(), root.join(plan.fingerprint()));
    stage.remove().unwrap();
    stage.remove().unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "no lock and nothing else is left");
    assert_holds(&stage, &plan);
    assert_holds(&ensure(&plan, &root).unwrap(), &plan);
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[100]);
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let root = folder.path().join("stages");
    let half = root.join(format!("{}.4242-0.partial", plan.fingerprint()));
    let foreign = root.join("other.4242-0.partial");
    for dir in [&half, &foreign] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("rows-0.arrow"), "half").unwrap();
    }
    let stage = ensure(&plan, &root).unwrap();
    assert_holds(&stage, &plan);
    assert!(!half.exists());
    assert!(foreign.exists(), "another stage's directory is not ours to remove");
}

#[test]
fn a_failed_query_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[300]);
    let sql = "SELECT CAST(s AS BIGINT) AS n FROM t";
    let plan = plan_with(&session, sql, &finest()).unwrap();
    let root = folder.path().join("stages");
    let error = ensure(&plan, &root).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    let left: Vec<_> =
        fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_lock = |name: &str| name.ends_with(".lock") || name.ends_with(".use");
    assert!(left.iter().all(|name| is_lock(&name.to_string_lossy())), "{left:?}");
}

#[test]
fn a_plan_of_some_splits_does_not_pass_for_the_whole() {
    use tensorquery::session::WorkerPlan;

    let folder = TempDir::new().unwrap();
    let session = files(folder.path(), &[300]);
    let plan = plan_with(&session, "SELECT * FROM t", &finest()).unwrap();
    let part = block_on(WorkerPlan::of(&plan, Some(&[0])).unwrap().open()).unwrap();
    assert_eq!(part.fingerprint(), plan.fingerprint());
    let root = folder.path().join("stages");
    ensure(&plan, &root).unwrap();
    let error = ensure(&part, &root).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("recipe"), "{error}");
}
