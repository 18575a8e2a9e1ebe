//! This process's place among the launched ranks, from the launcher's variables.

use std::collections::BTreeMap;

use crate::engine::Engine;

use super::LaunchError;

/// The place of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// This rank, below `world`.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Number among the ranks of this host; chooses the GPU.
    pub local_rank: usize,
    /// Ranks on this host.
    pub local_world: usize,
}

impl Place {
    /// Fails if the engine's world is not the launcher's, as under a launcher unknown to MPI: each rank would train
    /// alone.
    pub fn agrees_with(&self, engine: &dyn Engine) -> Result<(), LaunchError> {
        let (launched, found) = ((self.rank, self.world), (engine.rank(), engine.world()));
        if launched == found { Ok(()) } else { Err(LaunchError::OtherWorld { launched, found }) }
    }
}

/// Reads the launcher's variables; `None` if no launcher started several processes.
///
/// `mpirun` precedes Slurm, because it may run within a job. Slurm counts only if `SLURM_STEP_NUM_TASKS`, which `srun`
/// sets, is above 1: a job's script has the other variables but runs once.
pub fn place(variables: &BTreeMap<String, String>) -> Result<Option<Place>, LaunchError> {
    let read = Variables(variables);
    if variables.contains_key("OMPI_COMM_WORLD_SIZE") {
        return read.open_mpi().map(Some);
    }
    match read.number("SLURM_STEP_NUM_TASKS")? {
        Some(tasks) if tasks > 1 => read.slurm(tasks).map(Some),
        _ => Ok(None),
    }
}

struct Variables<'a>(&'a BTreeMap<String, String>);

impl Variables<'_> {
    fn open_mpi(&self) -> Result<Place, LaunchError> {
        let world = self.needed("OMPI_COMM_WORLD_SIZE")?;
        let rank = self.below("OMPI_COMM_WORLD_RANK", world)?;
        let local_world = self.needed("OMPI_COMM_WORLD_LOCAL_SIZE")?;
        let local_rank = self.below("OMPI_COMM_WORLD_LOCAL_RANK", local_world)?;
        Ok(Place { rank, world, local_rank, local_world })
    }

    fn slurm(&self, world: usize) -> Result<Place, LaunchError> {
        // PMIx may number processes unlike Slurm.
        let variable = if self.0.contains_key("PMIX_RANK") { "PMIX_RANK" } else { "SLURM_PROCID" };
        let rank = self.below(variable, world)?;
        let local_world = self.tasks_of_node()?;
        let local_rank = self.below("SLURM_LOCALID", local_world)?;
        Ok(Place { rank, world, local_rank, local_world })
    }

    /// This node's entry of a list such as `4(x2),3`: two nodes of four tasks and one of three.
    fn tasks_of_node(&self) -> Result<usize, LaunchError> {
        const LIST: &str = "SLURM_STEP_TASKS_PER_NODE";
        let node = self.needed("SLURM_NODEID")?;
        let entry = |entry: &str| {
            let (tasks, times) = match entry.split_once("(x") {
                Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
                None => (entry, 1),
            };
            Some(std::iter::repeat_n(tasks.parse::<usize>().ok()?, times))
        };
        let text = self.0.get(LIST).map(String::as_str).unwrap_or_default();
        let lists: Option<Vec<_>> = text.split(',').map(entry).collect();
        let tasks = lists.and_then(|lists| lists.into_iter().flatten().nth(node));
        tasks.ok_or_else(|| wrong(LIST, text, format!("does not say how many tasks node {node} has")))
    }

    fn number(&self, variable: &'static str) -> Result<Option<usize>, LaunchError> {
        let Some(text) = self.0.get(variable) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| wrong(variable, text, "is no number"))
    }

    fn needed(&self, variable: &'static str) -> Result<usize, LaunchError> {
        self.number(variable)?.ok_or_else(|| wrong(variable, "", "is missing"))
    }

    fn below(&self, variable: &'static str, limit: usize) -> Result<usize, LaunchError> {
        let number = self.needed(variable)?;
        let reason = || format!("is not below {limit}, the number of processes");
        if number < limit { Ok(number) } else { Err(wrong(variable, &number.to_string(), reason())) }
    }
}

fn wrong(variable: &'static str, value: &str, reason: impl Into<String>) -> LaunchError {
    LaunchError::Variable { variable, value: value.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Alone;

    fn of(lines: &str) -> Result<Option<Place>, LaunchError> {
        let pair = |line: &str| line.trim().split_once('=').map(|(name, value)| (name.into(), value.into()));
        place(&lines.split_whitespace().filter_map(pair).collect())
    }

    const SRUN: &str = "SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 \
                        SLURM_STEP_TASKS_PER_NODE=4,3";

    #[test]
    fn mpirun_gives_rank_world_and_the_place_on_the_host() {
        let found = of("OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                        OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=5 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1");
        assert_eq!(found, Ok(Some(Place { rank: 5, world: 8, local_rank: 1, local_world: 4 })));
    }

    #[test]
    fn srun_gives_a_place_and_the_script_of_a_job_does_not() {
        let expected = Place { rank: 5, world: 7, local_rank: 1, local_world: 3 };
        assert_eq!(of(SRUN), Ok(Some(expected)));
        assert_eq!(of(&format!("{SRUN} PMIX_RANK=6")), Ok(Some(Place { rank: 6, ..expected })));
        let list = SRUN.replace("=4,3", "=1,3(x2)").replace("NODEID=1", "NODEID=2");
        assert_eq!(of(&list), Ok(Some(expected)));
        assert_eq!(of("SLURM_JOB_ID=1 SLURM_NTASKS=7 SLURM_PROCID=0 SLURM_LOCALID=0"), Ok(None));
        assert_eq!(of(&SRUN.replace("NUM_TASKS=7", "NUM_TASKS=1")), Ok(None));
        assert_eq!(of(""), Ok(None));
    }

    #[test]
    fn a_contradiction_is_reported_with_the_variable_and_its_value() {
        let told = |lines: &str| of(lines).expect_err("a contradiction").to_string();
        let text = told("OMPI_COMM_WORLD_RANK=8 OMPI_COMM_WORLD_SIZE=8");
        assert!(text.contains("OMPI_COMM_WORLD_RANK=\"8\"") && text.contains("not below 8"), "{text}");
        assert!(told("OMPI_COMM_WORLD_SIZE=8").contains("OMPI_COMM_WORLD_RANK=\"\""));
        assert!(told("OMPI_COMM_WORLD_SIZE=many").contains("is no number"));
        assert!(told(&SRUN.replace("=4,3", "=4")).contains("how many tasks node 1 has"));
        assert!(told(&SRUN.replace("=4,3", "=4,3(x")).contains("how many tasks node 1 has"));
    }

    #[test]
    fn a_process_whose_mpi_sees_another_world_than_its_launcher_is_refused() {
        let place = |world| Place { rank: 0, world, local_rank: 0, local_world: world };
        assert_eq!(place(1).agrees_with(&Alone), Ok(()));
        let error = place(4).agrees_with(&Alone).expect_err("a world of one").to_string();
        assert!(error.contains("rank 0 of 4") && error.contains("srun --mpi=pmix"), "{error}");
    }
}
