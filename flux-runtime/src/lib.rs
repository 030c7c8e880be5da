//! Devices, streams, symmetric memory, signals, ranks and launches.
