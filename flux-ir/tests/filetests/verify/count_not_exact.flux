; A wait that ends when one of the CTAs has come, whichever that is.
program @meet for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %here[1] device
  agent come on ctas {
    signal %here[0] += 1 scope gpu after performed @6:5 ; error[count-not-exact]: rank 0, cta 0 of `come` may raise `%here[0]` before rank 0, cta 1 of `come` does, and end a wait for 1 in its place
  }
  agent meet on ctas {
    wait %here[0] >= epoch scope gpu @9:5 ; error[count-not-exact]: the target of the wait for `%here[0]` grows by 1 a launch, the signal by 2
  }
}
