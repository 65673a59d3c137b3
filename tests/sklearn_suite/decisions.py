"""Tests of scikit-learn that fail here, each by decision; one that passes fails the suite."""

NUMBERS = "X holds numbers: kernels of words and sequences are not computed by tiles"
STOPS = "learning ends where the next step would gain less than 1e-5 nats, with slopes that may exceed 1e-4"
WARNINGS = "one warning for each fit, in other words; a WhiteKernel has no meaning for classes and is refused"
OUTPUTS = "there is no n_targets: before fit the prior is that of one output, in fit y says how many there are"

DECISIONS = {
    ("test_sklearn_gpc", "test_predict_consistent_structured"): NUMBERS,
    ("test_sklearn_gpc", "test_latent_mean_and_variance_works_on_structured_kernels"): NUMBERS,
    ("test_sklearn_gpr", "test_gpr_interpolation_structured"): NUMBERS,
    ("test_sklearn_gpc", "test_converged_to_local_maximum"): STOPS,
    ("test_sklearn_gpr", "test_converged_to_local_maximum"): STOPS,
    ("test_sklearn_gpc", "test_warning_bounds"): WARNINGS,
    ("test_sklearn_gpr", "test_warning_bounds"): WARNINGS,
    ("test_sklearn_gpr", "test_sample_y_shape_with_prior"): OUTPUTS,
    ("test_sklearn_gpr", "test_predict_shape_with_prior"): OUTPUTS,
    ("test_sklearn_gpr", "test_n_targets_error"): OUTPUTS,
    (
        "test_sklearn_gpc",
        "test_gpc_latent_mean_and_variance_complain_on_more_than_2_classes",
    ): "latent() has the latent means and variances of several classes, too",
    ("test_sklearn_gpr", "test_gpr_correct_error_message"): "noise is positive: alpha=0 is refused before K is made",
    ("test_sklearn_gpr", "test_gpr_fit_error"): "other words, and noise alone is refused as a kernel",
    ("test_sklearn_gpr", "test_gpr_lml_error"): "without theta the gradient is that at the learned hyperparameters",
    (
        "test_sklearn_gpr",
        "test_gpr_predict_input_not_modified",
    ): "a subclass of a kernel of scikit-learn may have any formula and is refused with the remedy",
}
"""The file and the name of a test, and the reason."""

CASES = {
    ("test_sklearn_gpr", "test_converged_to_local_maximum"): ("kernel2", "kernel3", "kernel4"),
    ("test_sklearn_gpr", "test_sample_y_shape_with_prior"): ("1-2", "1-3", "5-2", "5-3"),
    ("test_sklearn_gpr", "test_predict_shape_with_prior"): ("2", "3"),
}
"""The cases of a test that fail, where not all do."""
