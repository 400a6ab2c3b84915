"""The sweeper of Hydra (`hydra_plugins.hydra_mpitune`): each job is a trial of a study of Optuna."""
