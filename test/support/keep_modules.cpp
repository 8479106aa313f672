// Linked into every program of an AddressSanitizer build. LeakSanitizer runs when the process ends, and can
// name the module of a leak only if the module is still loaded; MPI_Finalize unloads Open MPI's components.
extern "C" int dlclose(void*) {
  return 0;
}
