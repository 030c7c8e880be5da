; A wait that ends when every CTA has come.
program @meet for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %here[1] device
  agent come on ctas {
    signal %here[0] += 1 scope gpu after performed @6:5
  }
  agent meet on ctas {
    wait %here[0] >= ctas * epoch scope gpu @9:5
  }
}
