; The signal grows with the launch, what is waited for does not.
program @drift for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %here[1] device
  agent come on copy_engine {
    signal %here[0] += 1 scope sys after performed @6:5
  }
  agent meet on ctas {
    wait %here[0] >= 1 scope sys @9:5 ; error[count-not-exact]: the target of the wait for `%here[0]` grows by 0 a launch, the signal by 1
  }
}
