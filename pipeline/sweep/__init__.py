"""The parts of ``learner sweep``: its points, their names, isolated copies, devices, engines."""
