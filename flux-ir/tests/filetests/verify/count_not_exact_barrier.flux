; Ranks raise one counter, peer after peer: one that is through raises for its next launch before
;   a slow one has raised for this.
program @barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %here[1] host
  agent meet on copy_engine {
    for %p in 0..world { @7:5
      signal peer(%p).%here[0] += 1 scope sys after performed @8:7 ; error[count-not-exact]: rank 0, the copy engine of `meet` may raise `%here[0]` before rank 1, the copy engine of `meet` does, and end a wait for 2 in its place
    }
    wait %here[0] >= world * epoch scope sys @10:5
  }
}
