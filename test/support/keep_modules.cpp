// Linked into every program of an AddressSanitizer build. LeakSanitizer, which runs when the process ends,
// can name the module that a leak comes from only while the module is loaded; Open MPI's components are
// unloaded in MPI_Finalize.
extern "C" int dlclose(void*) {
  return 0;
}
