// Arguments of the ABI to launches: every check of a call, in one function per operation. Nothing is launched here.
#pragma once

#include "api/views.h"

namespace kda {

Status build_extend(Call& call, const kda_extend_args& args, ExtendLaunch* launch);
Status build_decode(Call& call, const kda_decode_args& args, DecodeLaunch* launch);
Status build_verify(Call& call, const kda_verify_args& args, VerifyLaunch* launch);
Status build_commit(Call& call, const kda_commit_args& args, CommitLaunch* launch);
Status build_move(Call& call, const kda_move_args& args, MoveLaunch* launch);
Status build_conv(Call& call, Operation operation, const kda_conv_args& args, ConvLaunch* launch);
Status build_conv_commit(Call& call, const kda_commit_args& args, ConvCommitLaunch* launch);
Status build_conv_move(Call& call, const kda_move_args& args, ConvMoveLaunch* launch);

}  // namespace kda
