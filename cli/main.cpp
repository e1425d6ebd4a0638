#include "cli/command.h"

int main(int argc, char** argv) { return kda::cli::run(argc, argv); }
