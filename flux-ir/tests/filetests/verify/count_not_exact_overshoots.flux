; The count steps over what is waited for.
program @meet for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %here[1] device
  agent come on ctas {
    signal %here[0] += 2 scope gpu after performed @6:5
  }
  agent meet on ctas {
    wait %here[0] >= 2 * ctas * epoch - 1 scope gpu @9:5 ; error[count-not-exact]: rank 0, cta 0 of `meet` waits for `%here[0]` >= 1, which goes to 2 at once: the count is never exact
  }
}
